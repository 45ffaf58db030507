"""What is kept on disk of what happened, and told live."""
