"""What model files hold: the GGUF container, tensor types, and the layers of architectures."""
