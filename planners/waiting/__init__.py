"""Callers and what they wait for: lines, turns on memory, the contexts they asked for."""
