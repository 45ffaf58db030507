"""Ollama's native dialect: its requests, options and replies, over llama-server's routes."""
