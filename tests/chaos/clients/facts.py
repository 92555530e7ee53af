"""What is acknowledged and never ended, what nobody renews, who stands in line, and what must be refused."""

from __future__ import annotations

import asyncio
from functools import partial

from coordinator.client import HoldfastError, clock
from tests.chaos.clients.work import Work, was_refused

LEDGER = "ledger"
"""The provider of what is registered for good."""
LINE = "line"
STANDING = 4
"""So many want one lock: there is more than one in the queue."""
LINE_TTL_S, LINE_WAIT_S = 5.0, 20.0
FORSAKEN_MS = 2_000
LOOK_S = 0.4
TURN_S = 0.3
STRANGER = "stranger"
"""Holds nothing."""


async def bookkeeper(work: Work) -> None:
    """One fact after the other; each that was acknowledged has to be there in the end (I9)."""
    number = 0
    while not work.settle.is_set():
        number += 1
        name = f"{LEDGER}/{number}"
        register = partial(work.client.resources.register, name, provider=LEDGER, kind="fact", pinned=True)
        if await work.until_done("graph", register) is not None:
            work.recorder.note("fact", name=name)
        await work.pause(TURN_S, work.settle)
    work.recorder.note("settled")


async def forsaker(work: Work) -> None:
    """Leases that nobody renews, looked at until they are gone: each sight of one still there is noted (I5).

    Of these it is known what was promised, and that they run out: no expiry may be earlier (I4)."""
    number = 0
    while not work.settle.is_set():
        number += 1
        name, sent = f"forsaken/{number}", clock.now()
        body = {"resource_id": name, "client_id": work.name, "lease_duration_ms": FORSAKEN_MS}
        with work.telling("lease"):
            told = await work.client.call("POST", "/leases/acquire", body)
            lease_id, token = told["lease_id"], told["fencing_token"]
            work.recorder.note("forsaken", lease_id=lease_id, name=name, token=token, sent=sent, ttl_ms=FORSAKEN_MS)
            await _watch_it_go(work, lease_id)
        await work.pause(TURN_S, work.settle)
    work.recorder.note("settled")


async def _watch_it_go(work: Work, lease_id: str) -> None:
    while not work.stop.is_set():
        called = clock.now()
        with work.telling("read"):
            seen = (await work.client.call("POST", "/leases/lookup", {"lease_ids": [lease_id]}))["leases"][0]
            if seen["state"] != "ACTIVE":
                work.recorder.note("forsaken_gone", lease_id=lease_id)
                return
            work.recorder.note("forsaken_there", lease_id=lease_id, called=called)
        await work.pause(LOOK_S)


async def line(work: Work) -> None:
    """Several in one queue all the time (I12, I13)."""

    async def stand() -> None:
        while not work.settle.is_set():
            with work.telling("lock"):
                async with work.client.lock(LINE, ttl=LINE_TTL_S, wait=LINE_WAIT_S) as held:
                    work.acknowledged("lock")
                    work.recorder.note("held", key=LINE, token=held.token, until=clock.now() + held.valid_for)
                    await work.pause(work.rng.uniform(0, TURN_S), work.settle)

    await asyncio.gather(*(stand() for _ in range(STANDING)))


async def knocker(work: Work) -> None:
    """Asks for what nobody may have; that it gets any of it would be noted as `let_in` (I17)."""
    asked = (
        ("/locks/release", {"lock_key": LINE, "client_id": STRANGER, "fencing_token": 1}),
        ("/locks/renew", {"lock_key": LINE, "client_id": STRANGER, "fencing_token": 1, "extend_time_ms": 60_000}),
        ("/locks/acquire", {"lock_key": "", "client_id": STRANGER, "lease_time_ms": 1_000}),
        ("/locks/acquire", {"lock_key": LINE, "client_id": STRANGER, "lease_time_ms": -1}),
        ("/leases/release", {"resource_id": "first", "client_id": STRANGER}),
        ("/resources/batch", {"resource_ids": [7], "provider": LEDGER}),
        ("/queues/nowhere/tasks", {"tasks": [{"payload": 1}]}),
    )
    while not work.settle.is_set():
        path, body = work.rng.choice(asked)
        began = clock.now()
        try:
            await work.client.call("POST", path, body)
            work.recorder.note("let_in", path=path)
        except HoldfastError as error:
            if was_refused(error):
                work.recorder.note("turned_away", path=path)
            else:
                told = type(error).__name__
                work.recorder.note("failed", kind="refusal", error=told, began=began, text=str(error))
        await work.pause(TURN_S, work.settle)
