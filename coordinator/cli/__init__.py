"""The command line: what a person types. One noun a file; `program` puts them together."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    # Late, so that one noun can be imported without all the others.
    from coordinator.cli import program  # noqa: PLC0415

    return program.main(arguments)


__all__ = ["main"]
