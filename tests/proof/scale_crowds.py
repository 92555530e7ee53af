"""Ten thousand that wait for one lock, and a hundred thousand leases that end in one moment."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

from bench.expiry import ALIVE, BATCH, DUE_MS, DYING, PER_SECOND, POLL_S, SECONDS, Mass, rounds_of
from bench.holdfast import Holdfast
from bench.load import Api
from bench.paced import Asked, Http, Pacer
from bench.renewing import HEADERS, Leases
from bench.wire import Wire, connect, request
from cluster.options import Timing
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY
from tests.robustness.record import quantile
from tests.waiting import until

WAITERS, DYING_EVERY, GRANTS = 10_000, 1_000, 200
"""Of them, one in so many hangs up in the queue; and so many are granted one after the other."""
LATE_EVERY = 10
"""Each time after so many grants, the next in line hangs up just before the lock is released."""
WAIT_MS = 600_000
KEY = "scale"
W_S = 2.0
"""A free lock with one that waits is granted within this (I13): an election and a commit would fit into it."""
SWEEP_S = 30.0
"""What a sweep of all of them may take at most, on a machine that others use too. It is a bound of our own: that of I5
is for a sweep of what fits into one entry, and here are as many as fit into a thousand."""
GOAL_RATIO = 2.0


def ask(client_id: str, **more: Any) -> bytes:
    body = {"lock_key": KEY, "client_id": client_id, "lease_time_ms": WAIT_MS, **more}
    return request("POST", "/api/v1/locks/acquire?timeout_ms=60000", body)


def give_back(client_id: str, token: int) -> bytes:
    return request("POST", "/api/v1/locks/release", {"lock_key": KEY, "client_id": client_id, "fencing_token": token})


def told(answer: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


class Queue:
    """The waiters, each with a connection of its own, by name; and what each was told."""

    def __init__(self, nodes: Holdfast) -> None:
        self._nodes = nodes
        self._wires: dict[str, Wire] = {}
        self.asked: dict[str, asyncio.Task[bytes]] = {}
        self.granted: list[tuple[str, int, float]] = []

    async def join(self, name: str, number: int) -> None:
        address = self._nodes.address(number % 3 + 1)
        wire = self._wires[name] = await connect(address)
        self.asked[name] = asyncio.create_task(self._wait(name, wire))

    async def _wait(self, name: str, wire: Wire) -> bytes:
        while True:
            answer = await wire.ask(ask(name, block_time_ms=WAIT_MS, request_id=name))
            if answer[9:12] != b"429":
                break
        if answer[9:12] == b"200":
            self.granted.append((name, told(answer)["fencing_token"], time.monotonic()))
        return answer

    def leave(self, name: str) -> None:
        """As a client that dies does: its connection ends, and nothing is said."""
        self._wires[name].close()

    async def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        await asyncio.gather(*self.asked.values(), return_exceptions=True)


async def queue_of(wire: Wire) -> list[str]:
    answer = await wire.ask(request("GET", f"/api/v1/locks/{KEY}"))
    return [waiter["client_id"] for waiter in told(answer).get("waiters", [])]


async def waiters(nodes: Holdfast, count: int = WAITERS, grants: int = GRANTS) -> dict[str, Any]:
    control = await connect(nodes.address(1))
    held = told(await control.ask(ask("holder")))
    queue = Queue(nodes)
    try:
        for start in range(0, count, 500):
            await asyncio.gather(*(queue.join(f"w{each:05d}", each) for each in range(start, min(start + 500, count))))

        async def all_wait() -> bool:
            return len(await queue_of(control)) == count

        await until(all_wait, "all of them in the queue", 180)
        expected = await queue_of(control)
        gone = {name for place, name in enumerate(expected) if place % DYING_EVERY == 0 or place in range(1, 20, 2)}
        for name in gone:
            queue.leave(name)

        async def all_left() -> bool:
            return not gone & set(await queue_of(control))

        await until(all_left, "the dead to have left", 90)
        living = [name for name in expected if name not in gone]
        return await _granted(control, queue, held["fencing_token"], living, gone, grants)
    finally:
        await queue.close()
        control.close()


async def _granted(
    control: Wire, queue: Queue, token: int, living: list[str], gone: set[str], grants: int
) -> dict[str, Any]:
    """One release; who has it then releases it, and so on."""
    name, gaps_s, at_once, late = "holder", list[float](), 0, set[str]()
    for turn in range(grants):
        if turn % LATE_EVERY == LATE_EVERY - 1:
            late.add(living[turn])
            queue.leave(living.pop(turn))
        began = time.monotonic()
        await control.ask(give_back(name, token))
        await until(lambda turn=turn: len(queue.granted) > turn, "a grant", 60)  # type: ignore[misc]
        if turn == 0:
            # One release is one grant: nobody else is told anything while the others can be seen in the queue.
            at_once = len(queue.granted) + len(await queue_of(control)) - len(living)
        name, token, when = queue.granted[turn]
        gaps_s.append(when - began)
    return {**grants_verdict(queue.granted, living, gone | late, at_once, gaps_s), "dead_at_the_release": len(late)}


def grants_verdict(
    granted: list[tuple[str, int, float]], living: list[str], gone: set[str], too_often: int, gaps_s: list[float]
) -> dict[str, Any]:
    """`granted`: name, token and when, as they came; `gaps_s`: from each release to its grant."""
    order, tokens = [each[0] for each in granted], [each[1] for each in granted]
    figures = {
        "waiters": len(living) + len(gone),
        "dead_in_the_queue": len(gone),
        "granted": len(order),
        "in_order": order == living[: len(gaps_s)],
        "tokens_rise": tokens == sorted(set(tokens)),
        "granted_too_often": too_often,
        "dead_that_were_granted": len(gone & set(order)),
        "release_to_grant_p50_s": round(quantile(gaps_s, 0.5), 4),
        "release_to_grant_longest_s": round(max(gaps_s), 3),
        "goal": f"in order, one grant a release, none to the dead, each within {W_S:g} s (I12, I13)",
    }
    good = figures["in_order"] and figures["tokens_rise"] and not too_often and not gone & set(order)
    return {**figures, "reached": bool(good and max(gaps_s) <= W_S)}


# --- expiries ---------------------------------------------------------------------------------------------------------


class Sent(Api):
    """Notes when its last write left: what is promised to a client counts from then (I4)."""

    sent_s = 0.0

    async def post(self, path: str, body: Any = None, *, node: int = 0, headers: dict[str, str] | None = None) -> bytes:
        self.sent_s = time.monotonic()
        return await super().post(path, body, node=node, headers=headers)


@dataclass(frozen=True)
class Ending:
    """When leases were renewed for the last time, and when they were seen to go."""

    sent_s: float
    answered_s: float
    first_s: float
    last_s: float
    missing: int
    """Were gone already when the renewal was answered."""

    @property
    def early_s(self) -> float:
        """How much earlier the first was seen gone than it may go (I4); below 0: none was."""
        return self.sent_s + DUE_MS / 1e3 / (1 + Timing().drift) - self.first_s

    @property
    def late_s(self) -> float:
        """From when the last can have been due, which is as long after the answer as after the renewal at most."""
        return self.last_s - self.answered_s - DUE_MS / 1e3


async def expiries(nodes: Holdfast, dying: int = DYING, alive: int = ALIVE) -> dict[str, Any]:
    api, pacer = Sent(nodes), Pacer()
    try:
        leases, mass = Leases(api, lambda _: None), Mass(api)
        await leases.grow(alive)
        made = request("POST", "/api/v1/heartbeats", leases.heartbeats(BATCH).bodies[: 8 * BATCH], HEADERS)
        asked = Asked(api.addresses[0], Http, (made,), PER_SECOND, SECONDS)
        await leases.settle()
        await mass.acquire(dying)
        sent_s, answered_s, over = api.sent_s, time.monotonic(), asyncio.Event()
        missing = dying + alive - (await api.telemetry())["active_leases"]
        renewing = asyncio.create_task(rounds_of(pacer, asked, over))
        try:
            first, last = await mass.dead(alive)
        finally:
            over.set()
            rounds = await renewing
    finally:
        pacer.close()
        api.close()
    before = [each["p99_ms"] for (_, end), each in rounds if end < first]
    during = [each["p99_ms"] for (begin, end), each in rounds if begin <= last and end >= first]
    ending = Ending(sent_s, answered_s, first, last, missing)
    return expiries_verdict(ending, quantile(before, 0.5), quantile(during, 0.5), dying, alive)


def expiries_verdict(ending: Ending, before_ms: float, during_ms: float, dying: int, alive: int) -> dict[str, Any]:
    """`before_ms`, `during_ms`: the p99 of renewals of others, in the middle round."""
    ratio = during_ms / before_ms
    return {
        "leases": dying,
        "renewed_meanwhile": alive,
        "gone_at_once": ending.missing,
        "first_gone_after_promise_s": round(-ending.early_s, 2),
        "all_gone_after_due_s": round(ending.late_s, 2),
        "seen_every_s": POLL_S,
        "a_second": round(dying / max(ending.last_s - ending.first_s, POLL_S)),
        "entries_at_least": dying // MAX_EXPIRIES_PER_ENTRY,
        "renewal_p99_ms_before": round(before_ms, 2),
        "renewal_p99_ms_during": round(during_ms, 2),
        "p99_ratio": round(ratio, 2),
        "goal": (
            f"none seen gone before send + TTL/(1+ρ) (I4), the last one {SWEEP_S:g} s after it was due at most; "
            f"p99 of renewals ≤ {GOAL_RATIO:g} × before"
        ),
        "reached": bool(
            not ending.missing and ending.early_s <= 0 and ending.late_s <= SWEEP_S and ratio <= GOAL_RATIO
        ),
    }
