"""Hostile bytes for all that reads bytes: `python -m tests.fuzz --bytes 100M`; a slice of it is in `make test`."""
