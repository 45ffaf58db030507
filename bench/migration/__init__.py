"""`make bench-migration`: streams whose model moves, or whose process is killed, and what came."""
