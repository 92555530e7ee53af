"""For how long a connection is not read, because what came behind the request under way fills it.

Nor is it seen then that its client has gone: the end stands behind what is not read. So whoever fills it behind a
request that waits is cut off, there or not, or a lock would be granted to one that left long ago.
"""

from __future__ import annotations

FULL_S = 10.0
"""Longer than a request takes by default that waits for nothing, and as long as a refused one is held back at most."""


class Fullness:
    """Of one connection. The body of the request under way fills nothing: its handler has yet to take it."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    def ended(self) -> None:
        """A request was answered: whoever sent many is not cut off while one after the other is."""
        self._since = None

    def is_too_long(self, now: float, full: bool) -> bool:
        """Asked now and then, with how it is found."""
        if not full:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since > FULL_S
