"""What the operator set: files and environment in, one frozen Config out."""
