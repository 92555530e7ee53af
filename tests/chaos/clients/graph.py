"""Resources that refer to each other in circles, kept by leases; and workers that clean up what nothing keeps.

Each circle also refers to a resource that is kept by something else: that one must stay when the circle goes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from coordinator.client import Lease, ReclaimItem
from coordinator.client.calls import new_request_id
from tests.chaos.clients.work import Promises, Work

PROVIDER = "chaos"
KIND = "file"
SHARED = tuple(f"shared/{number}" for number in range(3))
TTL_S = 8.0
BUFFER_S = 0.5
CLAIM_S = 5.0
HELD = 4
"""Circles at a time; the oldest is let go for a new one."""
LEFT = 2
"""Of those, so many are kept to the end."""
TURN_S = 0.4
STUMBLES = 0.05


@dataclass
class Circle:
    number: int
    ids: list[str]
    leases: list[Lease] = field(default_factory=list)


class Owner:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._promises = Promises()
        self._circles: list[Circle] = []

    async def run(self) -> None:
        work = self._work
        looking = asyncio.ensure_future(self._promises.keep_looking(work))
        await work.until_done("graph", partial(self._register, SHARED))
        number = 0
        while not work.settle.is_set():
            await self._make(number)
            number += 1
            if len(self._circles) > HELD:
                await self._let_go(self._circles.pop(0))
            await work.pause(TURN_S, work.settle)
        while len(self._circles) > LEFT and not work.stop.is_set():
            await self._let_go(self._circles.pop(0))
        work.recorder.note("settled")
        await work.stop.wait()
        await looking

    async def _make(self, number: int) -> None:
        """Pinned until the whole of it stands: however long that takes, nothing of it goes before."""
        work, resources = self._work, self._work.client.resources
        circle = Circle(number, [f"circle/{number}/{place}" for place in range(work.rng.randint(2, 4))])
        ids, shared = circle.ids, work.rng.choice(SHARED)
        edges = [*zip(ids, [*ids[1:], ids[0]], strict=True), (ids[-1], shared)]
        work.recorder.note("circle", number=number, ids=ids, shared=shared)
        await work.until_done("graph", partial(self._register, ids))
        await work.until_done("graph", partial(resources.add_edges, edges))
        for resource in ids[: work.rng.randint(1, 2)]:
            lease = await work.until_done("graph", partial(work.client.acquire_lease, resource, ttl=TTL_S))
            if lease is None:
                return
            self._promises.follow(lease)
            work.recorder.note("circle_leased", number=number, lease_id=lease.lease_id)
            lease.on_lost(partial(self._lost, number))
            circle.leases.append(lease)
        await work.until_done("graph", partial(self._unpin, ids, new_request_id()))
        self._circles.append(circle)

    async def _register(self, ids: Sequence[str]) -> None:
        await self._work.client.resources.register_many(
            ids, provider=PROVIDER, kind=KIND, safety_buffer=BUFFER_S, pinned=True
        )

    async def _unpin(self, ids: Sequence[str], request_id: str) -> None:
        """Under one id however often it is asked: repeated without, it could register again what has gone meanwhile."""
        body = {"resource_ids": list(ids), "provider": PROVIDER, "kind": KIND, "pinned": False}
        said = {**body, "safety_buffer_ms": round(BUFFER_S * 1000)}
        await self._work.client.call("POST", "/resources/batch", said, request_id=request_id)

    def _lost(self, number: int, lease: Lease) -> None:
        self._promises.leave(lease)
        until = self._promises.until.get(lease.lease_id, 0.0)
        self._work.recorder.note("circle_left", number=number, lease_id=lease.lease_id, until=until, lost=True)

    async def _let_go(self, circle: Circle) -> None:
        """The first lease, then the last: from before that one on, nothing keeps the circle."""
        for lease in circle.leases:
            if lease.state == "LOST":
                self._lost(circle.number, lease)
            else:
                self._promises.leave(lease)
                self._work.recorder.note("circle_left", number=circle.number, lease_id=lease.lease_id, lost=False)
            with self._work.telling("graph"):
                await lease.release()
                self._work.acknowledged("graph")


async def owner(work: Work) -> None:
    await Owner(work).run()


async def cleaner(work: Work) -> None:
    async def clean(item: ReclaimItem) -> None:
        if work.rng.random() < STUMBLES:
            raise RuntimeError("the clean-up stumbled, as clean-ups do")
        await asyncio.to_thread(work.store.clean, item.resource_id, item.reclaim_id, item.token, work.name)
        work.acknowledged("clean-up")

    working = asyncio.ensure_future(work.client.reclaim_worker(PROVIDER, clean, claim=CLAIM_S))
    over = asyncio.ensure_future(work.stop.wait())
    await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    over.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
