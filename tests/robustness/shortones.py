"""Locks, leases and sessions with short times that nobody renews any more: with a stable quorum they go (I5).

Every node is asked for all that it has, page by page, and none of it may be a short one of this run: also none whose
client was never told that it has it. Only those that were told, and that nobody gave back, are counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

from tests.checkers.violation import Violation
from tests.robustness.asking import TIMEOUT_MS
from tests.robustness.clients import RATE
from tests.robustness.fleetingclients import TTLS_MS, WAITS_MS, lease_key
from tests.robustness.leaseclients import KIND as LEASES
from tests.robustness.lockclients import KIND as LOCKS
from tests.robustness.pausing import pause
from tests.robustness.sessionclients import session_key
from tests.robustness.slices import Slice

LASTS_S = (RATE * max(TTLS_MS) + max(WAITS_MS) + TIMEOUT_MS) / 1000
"""From the end of all clients: a request may be on its way for as long as it allows, then stand in a queue, and have
its time from then on."""
ALLOWED_S = 5.0
"""Beyond that, for the buffer and the sweep of I5, for a new leader to begin with it, and for what is due to be taken
out of a log that has much to do. What a machine that is busy with other things may add is not in it."""
LISTED = 1_000
LOOK_AGAIN_S = 0.2
SHOWN = 5

Ask = Callable[[str, str], Awaitable[dict[str, Any]]]
"""A node and a path, for the answer: it insists until there is one."""


class ShortOnes:
    """Of all slices of a run."""

    def __init__(self) -> None:
        self._holds: set[tuple[str, str, str]] = set()
        """Kind, key and holder."""
        self.left: Counter[str] = Counter()
        """By kind, how many were granted and left to end by themselves."""

    def add(self, done: Slice) -> None:
        for (kind, key, holder, _), is_left in done.short_ones():
            self._holds.add((kind, key, holder))
            if is_left:
                self.left["sessions" if key.startswith("session ") else kind] += 1

    async def end(self, nodes: Sequence[str], ask: Ask, grace_s: Callable[[], float]) -> None:
        """On every node. The time counts from now on to the beginning of the last look: a look that takes long does
        nobody harm. `grace_s`: what the machine may add."""
        began_s = time.monotonic()
        for node in nodes:
            while True:
                looked_s = time.monotonic() - began_s
                there = [hold async for hold in _held(node, ask) if hold in self._holds]
                if not there:
                    break
                if looked_s > LASTS_S + ALLOWED_S + grace_s():
                    raise Violation(
                        "expired_goes",
                        f"{node} has {len(there)} short ones {looked_s:.1f} s after the last renewal (I5): "
                        f"{sorted(there)[:SHOWN]}",
                    )
                await pause(LOOK_AGAIN_S)


async def _held(node: str, ask: Ask) -> AsyncIterator[tuple[str, str, str]]:
    async for lock in _locks(node, ask):
        for holder in lock["holders"]:
            yield LOCKS, lock["lock_key"], holder["client_id"]
    async for lease in _listed(node, ask, "leases"):
        yield LEASES, lease_key(lease["resource_id"], lease["client_id"]), lease["client_id"]
    async for session in _listed(node, ask, "sessions"):
        if session["state"] == "ACTIVE":
            yield LEASES, session_key(int(session["session_id"], 16), session["client_id"]), session["client_id"]


async def _locks(node: str, ask: Ask) -> AsyncIterator[dict[str, Any]]:
    """Their pages have no cursor: the next one begins after the last key."""
    after = ""
    while True:
        page = (await ask(node, f"/api/v1/locks?limit={LISTED}&after={quote(after, safe='')}"))["locks"]
        for lock in page:
            yield lock
        if not page:
            return
        after = page[-1]["lock_key"]


async def _listed(node: str, ask: Ask, what: str) -> AsyncIterator[dict[str, Any]]:
    after = ""
    while True:
        page = await ask(node, f"/api/v1/{what}?limit={LISTED}{after}")
        for each in page[what]:
            yield each
        if page["next"] is None:
            return
        after = f"&after={page['next']}"
