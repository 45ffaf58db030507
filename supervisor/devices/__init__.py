"""One probe per source of device facts, each behind a guarded import."""
