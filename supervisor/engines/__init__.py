"""The llama-servers of this machine: found, tried, remembered."""
