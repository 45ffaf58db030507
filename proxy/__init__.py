"""HTTP in, HTTP out: dialects in front, one llama-server behind."""
