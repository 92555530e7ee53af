"""How long a grant may be relied on, by a clock of this host that goes on while the host is suspended."""

from __future__ import annotations

import time

DRIFT = 0.01
"""How far the rate of any clock, this host's or a node's, may be from true time: what nodes have as `timing.drift`."""
JITTER_S = 0.002


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def valid_until(sent: float, ttl_s: float, drift: float) -> float:
    """T_valid of a grant of `ttl_s` that was asked for at `sent`: nobody else is granted it before then.

    This clock may be slow by `drift` while the leader's is fast by as much: hence ε = 2·drift/(1 + drift).
    """
    return sent + ttl_s - (ttl_s * 2 * drift / (1 + drift) + JITTER_S)
