"""From cluster time to what people read: computed where an answer leaves, never used to decide anything."""

from __future__ import annotations

import time


def ttl_ms(expires_ms: int, now_ms: int) -> int:
    """What is left. Of an answer that is repeated, less than at first: clients count it from when they asked."""
    return max(0, expires_ms - now_ms)


def epoch_ms(left_ms: int) -> int:
    """The wall clock's moment `left_ms` from now."""
    return time.time_ns() // 1_000_000 + left_ms
