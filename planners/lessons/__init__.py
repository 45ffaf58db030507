"""What launches on this machine showed, as values, and what it corrects."""
