"""Prompts: how many there are, how long they are, and shortening them where that is asked for."""
