"""Models on the move between two launches, their conversations, and memory left to others."""
