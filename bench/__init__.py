"""Benchmarks, run by `make bench`: ratios against a named peer, both in one interleaved run."""
