"""Chat templates that are not Jinja: Ollama's TEMPLATE layers, read and put into other words."""
