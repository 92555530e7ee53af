"""What strangers cause is told once in a while: they must not be able to fill the disk with lines of the log."""

from __future__ import annotations

from collections.abc import Callable

QUIET_SECONDS = 60.0
QUIET_KEYS = 1024
"""Told apart, and so told at most in a minute: whoever has an IPv6 network has addresses without end."""


class Quiet:
    """Of each (address, kind) the first in a minute is to be told."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def kept_back(self, address: str, kind: str) -> int | None:
        """How many like it were not told since the last; None if this one is not to be told either."""
        key = (address, kind)
        at, kept_back = self._last.get(key, (float("-inf"), 0))
        if self._now() - at < QUIET_SECONDS:
            self._last[key] = (at, kept_back + 1)
            return None
        if self._last.pop(key, None) is None and len(self._last) >= QUIET_KEYS:
            oldest = next(iter(self._last))  # a key moves to the end when it is told
            if self._now() - self._last[oldest][0] < QUIET_SECONDS:
                return None
            del self._last[oldest]
        self._last[key] = (self._now(), 0)
        return kept_back
