"""A caller's connection: taken in, bounded in bytes and time, parsed, and told how it ends."""
