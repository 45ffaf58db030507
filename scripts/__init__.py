"""Programs of the workshop: what make runs, and what they share."""
