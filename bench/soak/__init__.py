"""`make soak`: three models where two fit, callers, and disturbances by chance."""
