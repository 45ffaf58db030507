"""The public port: its sockets, its keys, its certificate."""
