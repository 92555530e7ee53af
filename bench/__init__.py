"""Benchmarks: peers and Holdfast in the same run, on the same machine, doing the same work."""
