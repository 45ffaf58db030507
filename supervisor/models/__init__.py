"""The models on disk: found, read, named."""
