"""Holdfast: a replicated coordinator. What is replicated lives in `machine`, how it is served in `http`."""

__version__ = "0.1.0"
