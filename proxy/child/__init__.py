"""HTTP to a llama-server over its Unix socket, and what its words mean."""
