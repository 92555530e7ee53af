"""Questions to the nodes over HTTP at next to no cost: kept connections, one question at a time on each."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from bench.wire import Address, Unavailable, Wire, connect, request
from tests.checkers.refused_in_time import RefusedInTime
from tests.checkers.violation import Violation
from tests.robustness.pausing import pause

TIMEOUT_MS = 2_000
"""For how long a node may try."""
GRACE_S = 1.5
"""Beyond that, on a machine with a core for each who wants one. A node gives up by its own clock and says so at once;
what comes on top is the time in which its process and this one, which is all the clients and all the proxies, wait for
a core: as many times as long as there are more who want one than there are."""
LOOK_S, LATELY_S, KNOWN_S = 0.05, 15.0, 150.0
"""How often it is looked at how late this process is, how long that counts, and how long it is known: longer than any
fault lasts, with the time until all nodes are ready."""
PATIENCE_S = 10.0
"""Beyond that: so long a client waits, longer than any process is stopped and than what a node may take."""
AVOIDED_S = 0.5
"""For so long most do not ask a node that has just not answered."""
STUBBORN = 0.1
"""The part of the questions that does not look at that."""
STALENESS = b"X-Holdfast-Staleness-Ms: "
EXPECTED = (200, 403, 404, 409, 429, 503)

Outcome = Literal["done", "denied", "retry", "unknown"]


class Answer(NamedTuple):
    """Status 0: there was none."""

    status: int
    outcome: Outcome
    body: dict[str, Any]
    revision: int = 0
    staleness_ms: int = 0
    sent_s: float = 0.0
    ended_s: float = 0.0
    bounded: bool = False
    """It was asked from a copy that may be old."""
    aged: bool = False
    """It says how old."""
    retry_after_s: int = 0
    """It was refused, and told to stay away for so long."""
    doubted: bool = False
    """An earlier try of it ended without an answer."""

    @property
    def definite(self) -> bool:
        return self.outcome in ("done", "denied")


class Lateness:
    """How late this process comes to its own work: it waits for a core as the nodes do, however slow the machine."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    async def watch(self) -> None:
        while True:
            due_s = time.monotonic() + LOOK_S
            await pause(LOOK_S)
            now_s = time.monotonic()
            self._seen.append((now_s, now_s - due_s))
            while self._seen[0][0] < now_s - KNOWN_S:
                self._seen.popleft()

    @property
    def late_s(self) -> float:
        """By how much at most, lately."""
        return self.since_s(time.monotonic() - LATELY_S)

    def since_s(self, moment_s: float) -> float:
        """By how much at most, since then."""
        most_s = 0.0
        for seen_s, late_s in reversed(self._seen):
            if seen_s < moment_s:
                break
            most_s = max(most_s, late_s)
        return most_s

    def grace_s(self) -> float:
        """A question waits for this process when it is sent and when it is answered, and for the node's in between."""
        load = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        return GRACE_S * load + 3 * self.late_s


class Nodes:
    """Where they are, which of them did not answer just now, and what became of all questions."""

    def __init__(self, addresses: Sequence[Address], disturbed: Callable[[int, float], bool]) -> None:
        """`disturbed`: whether something was done to that node's process since that moment."""
        self.addresses = addresses
        self._avoided_until = [0.0] * len(addresses)
        self.lateness = Lateness()
        self._in_time = RefusedInTime(TIMEOUT_MS / 1000, disturbed, self.lateness.grace_s)
        self.counts: Counter[str] = Counter()

    def choose(self, rng: random.Random) -> int:
        now = time.monotonic()
        liked = [node for node, until in enumerate(self._avoided_until) if until <= now]
        return rng.choice(liked) if liked and rng.random() >= STUBBORN else rng.randrange(len(self.addresses))

    def ended(self, node: int, answer: Answer, waited: bool, what: str, read_s: float) -> None:
        """`read_s`: from when on the node owed an answer."""
        self.counts["requests"] += 1
        self.counts[f"status {answer.status}"] += 1
        if answer.status in (0, 503):
            self._avoided_until[node] = answer.ended_s + AVOIDED_S
        if waited:
            return
        try:
            self._in_time.ended(node, read_s, answer.ended_s)
        except Violation as late:
            late_s, told = self.lateness.late_s, answer.body.get("error", {}).get("code", "")
            raise Violation(
                late.invariant, f"{late}: {what}, {answer.status} {told}; {late_s:.2f} s late here"
            ) from late

    @property
    def slowest_s(self) -> float:
        """Of the answers of nodes that were left alone."""
        return self._in_time.slowest_s


class Asker:
    """One who asks one thing at a time; `pinned`: always the same node."""

    def __init__(self, nodes: Nodes, rng: random.Random, pinned: int | None = None) -> None:
        self._nodes, self._rng, self._pinned = nodes, rng, pinned
        self._wires: dict[int, Wire] = {}
        self._held_until: dict[int, float] = {}
        """By node: who was told to stay away and asks at once is not read before."""

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None, wait_ms: int = 0) -> Answer:
        """`wait_ms`: how long it may stand in a queue. A node that lost the others keeps it there for longer, and it is
        the client who goes."""
        node = self._nodes.choose(self._rng) if self._pinned is None else self._pinned
        path += f"{'&' if '?' in path else '?'}timeout_ms={TIMEOUT_MS}"
        sent_s, wire = time.monotonic(), None
        outcome: Outcome = "retry"
        try:
            async with asyncio.timeout((wait_ms + TIMEOUT_MS) / 1000 + (0 if wait_ms else PATIENCE_S)):
                wire = await self._wire(node)
                outcome = "unknown"  # from here on it may have arrived
                answer = _read(await wire.ask(request(method, path, body)), sent_s)
        except (OSError, TimeoutError, Unavailable):
            answer = Answer(0, outcome, {}, sent_s=sent_s, ended_s=time.monotonic())
            if wire is not None:
                wire.close()
                self._wires.pop(node, None)
        read_s = max(sent_s, self._held_until.get(node, 0.0))
        if answer.status == 429:
            self._held_until[node] = answer.ended_s + answer.retry_after_s
        self._nodes.ended(node, answer, wait_ms > 0, f"{method} {path}", read_s)
        return answer

    async def _wire(self, node: int) -> Wire:
        wire = self._wires.get(node)
        if wire is None or wire.closed:
            wire = self._wires[node] = await connect(self._nodes.addresses[node])
        return wire

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()


def _read(raw: bytes, sent_s: float) -> Answer:
    ended_s = time.monotonic()
    status, (head, _, content) = int(raw[9:12]), raw.partition(b"\r\n\r\n")
    body = json.loads(content)
    if status not in EXPECTED:
        raise Violation("answers", f"a node answered {status}: {content[:300]!r}")
    revision, staleness_ms = _number(head, b"X-Holdfast-Revision: "), _number(head, STALENESS)
    outcome: Outcome = "done" if status == 200 else body["error"]["outcome"]
    aged, away_s = STALENESS in head, _number(head, b"Retry-After: ")
    return Answer(status, outcome, body, revision, staleness_ms, sent_s, ended_s, aged=aged, retry_after_s=away_s)


def _number(head: bytes, name: bytes) -> int:
    place = head.find(name)
    return int(head[place + len(name) :].partition(b"\r\n")[0]) if place >= 0 else 0
