"""Clients over HTTP that write down what they asked, when, and what they were told.

A change is asked for under one request id, on one node after the other, until something definite is told; so nearly
every operation of the history has an end. Some are hasty: they take the first answer that is not definite. Told that
nothing happened, they leave nothing behind in the history: if it did happen all the same, no order explains it.

Most times of locks and leases are so long that none runs out while its slice lasts: what is held is given back or kept.
The short ones of `fleetingclients` and `sessionclients` do run out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from cluster.options import Timing
from tests.checkers.own_revisions import OwnRevisions
from tests.checkers.violation import Violation
from tests.robustness.asking import Answer, Asker, Nodes
from tests.robustness.pausing import pause
from tests.robustness.slices import Slice

LEASE_MS = 600_000
"""Of what must not run out: no slice lasts so long."""
RATE = 1 + Timing().drift
INSIST_S = 20.0
HASTY = 0.1
BOUNDED_MS = (20, 200, 1_000)
"""How old some reads may be."""

Told = Callable[[Answer, bool, int], None]
"""Of an answer, whether it acknowledges a change, and to how many operations."""


class Client:
    """One thing after the other, for the life of the run."""

    def __init__(self, nodes: Nodes, name: str, seed: int, told: Told, pinned: int | None = None) -> None:
        self.name, self.rng = name, random.Random(seed)
        self._asker = Asker(nodes, self.rng, pinned)
        self._told = told
        self._revisions = OwnRevisions()
        self._asked = 0

    async def turn(self, now: Slice) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._asker.close()

    def own_name(self) -> str:
        """Another one each time, so that nobody enters a lock twice."""
        self._asked += 1
        return f"{self.name}-{self._asked}"

    # --- asking -----------------------------------------------------------------------------------------------------

    async def change(
        self, path: str, body: dict[str, Any] | None, operations: int = 1, *, wait_ms: int = 0, method: str = "POST"
    ) -> Answer:
        """Definite, or told that nothing happened, or unknown; sent when it was first sent."""
        self._asked += 1
        named = {**(body or {}), "request_id": f"{self.name}-{self._asked}"}
        began_s, hasty, doubt = time.monotonic(), self.rng.random() < HASTY, False
        while True:
            answer = await self._asker.ask(method, path, named, wait_ms)
            if answer.definite:
                self._told(answer, True, operations)
                self._revisions.told(self.name, path, answer.revision)
                return answer._replace(sent_s=began_s, doubted=doubt)
            doubt |= answer.outcome == "unknown"
            await self._breathe()
            if hasty or answer.ended_s - began_s > INSIST_S:
                return answer._replace(outcome="unknown" if doubt else "retry", sent_s=began_s)

    async def beat(self, body: dict[str, Any], operations: int) -> Answer | None:
        """Renewals, which need no id. None if they were not answered: then they are nobody's."""
        return self._answered("/heartbeats", await self._asker.ask("POST", "/api/v1/heartbeats", body), operations)

    async def read(self, path: str, body: dict[str, Any] | None = None, operations: int = 1) -> Answer | None:
        """None if it was not answered. One in four may be old, and says how old it is."""
        bound_ms = self.rng.choice(BOUNDED_MS) if self.rng.random() < 0.25 else None
        if bound_ms is not None:
            path += f"{'&' if '?' in path else '?'}consistency=bounded&max_staleness_ms={bound_ms}"
        answer = (await self._asker.ask("GET" if body is None else "POST", path, body))._replace(bounded=bool(bound_ms))
        if answer.staleness_ms > (bound_ms or 0):
            raise Violation("bounded_reads", f"{path} was answered from a copy that is {answer.staleness_ms} ms old")
        if not answer.definite:
            await self._breathe()
        elif not answer.aged:
            raise Violation("bounded_reads", f"{path} was answered with {answer.status}, but not how old that may be")
        return self._answered(path, answer, operations)

    def _answered(self, what: str, answer: Answer, operations: int) -> Answer | None:
        if not answer.definite:
            return None
        self._told(answer, False, operations)
        if not answer.bounded:
            self._revisions.told(self.name, what, answer.revision)
        return answer

    @staticmethod
    def until_s(sent_s: float, ttl_ms: int) -> float:
        """Nothing that was asked for then, for so long, may be over before (I4)."""
        return sent_s + ttl_ms / 1000 / RATE

    async def _breathe(self) -> None:
        """A node that is down answers at once: not as fast as one can ask."""
        await pause(0.01 + 0.05 * self.rng.random())
