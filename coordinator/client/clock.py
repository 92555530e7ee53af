"""How long a grant may be relied on, by a clock of this host that goes on while the host is suspended."""

from __future__ import annotations

import time

DRIFT = 0.01
"""How much faster than the cluster's this host's clock may run: what nodes have as `timing.drift` unless set."""
JITTER_S = 0.002


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def valid_until(sent: float, ttl_s: float, drift: float) -> float:
    """T_valid of a grant of `ttl_s` that was asked for at `sent`: nobody else is granted it before then."""
    return sent + ttl_s - (ttl_s * drift + JITTER_S)
