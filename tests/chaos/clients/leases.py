"""Leases that the SDK keeps by itself, some short and some long, now and then given back and taken again."""

from __future__ import annotations

import asyncio

from coordinator.client import Lease
from tests.chaos.clients.work import Promises, Work

NAMES = tuple(f"kept/{number}" for number in range(30))
TTLS_S = (4.0, 15.0)
TURN_S = 0.2


async def keeper(work: Work) -> None:
    promises, held = Promises(), dict[str, Lease]()
    looking = asyncio.ensure_future(promises.keep_looking(work))

    def lost(lease: Lease) -> None:
        promises.leave(lease)
        work.recorder.note("lease_lost", lease_id=lease.lease_id, because=lease.lost_because)
        if held.get(lease.resource_id) is lease:
            del held[lease.resource_id]

    async def take(name: str, number: int) -> None:
        lease = await work.client.acquire_lease(name, ttl=TTLS_S[number % len(TTLS_S)])
        held[name] = lease
        work.recorder.note("leased", lease_id=lease.lease_id, name=name, token=lease.token)
        lease.on_lost(lost)
        promises.follow(lease)
        work.acknowledged("lease")

    while not work.settle.is_set():
        for number, name in enumerate(NAMES):
            if name not in held and not work.settle.is_set():
                with work.telling("lease"):
                    await take(name, number)
        if held:
            lease = held.pop(work.rng.choice(list(held)))
            promises.leave(lease)
            work.recorder.note("lease_released", lease_id=lease.lease_id)
            with work.telling("lease"):
                await lease.release()
                work.acknowledged("lease")
        await work.pause(TURN_S, work.settle)
    work.recorder.note("settled")
    await work.stop.wait()
    await looking
    work.recorder.note("promised", until=promises.until)
