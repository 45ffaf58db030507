"""Models in Ollama's layout on disk: manifests by name, blobs by digest, and how each comes."""
