"""llama-server's own routes, by model."""
