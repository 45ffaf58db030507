"""Slots of children and the callers who want them."""
