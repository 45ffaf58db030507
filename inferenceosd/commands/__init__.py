"""What inferenceosctl asks, answers and prints."""
