"""OpenAI's dialect, which is the child's own."""
