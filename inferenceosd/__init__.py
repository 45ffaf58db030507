"""Composition of the daemon: configuration, command lines, logs, and the one constructor."""

__version__ = "0.1.0"
