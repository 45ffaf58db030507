"""Pure values and functions: what the machine is, what a model needs, and what to do next."""
