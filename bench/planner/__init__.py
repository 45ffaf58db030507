"""`make bench-planner`: how far predictions are from what llama-server reported."""
