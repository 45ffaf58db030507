"""How a model moves between two launches, and what of its conversations goes along."""
