"""Replicas of one log, looked at once an entry: by the first of them that applies it.

The same command in the same state tells nothing more the second time; whether the states are the same is asked by
`digest_equal`.
"""

from __future__ import annotations


class Newest:
    """The last entry that any replica has applied."""

    def __init__(self) -> None:
        self._index = 0

    def is_new(self, index: int) -> bool:
        """True for the first that asks."""
        if index <= self._index:
            return False
        self._index = index
        return True
