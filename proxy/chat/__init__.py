"""Chats for dialects other than the child's own: one turn, its reply, and its media."""
