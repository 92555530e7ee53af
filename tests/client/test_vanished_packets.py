"""A provider whose packets vanish without a word serves nobody for long, and does its clean-ups later, once (fault 18).

Connections stay open: neither side is told of anything. Either the network brings later what it held back, or it has
forgotten the connections, and what was under way never comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import Client, ReclaimItem
from coordinator.client.verifier import LeaseVerifier
from tests.client.links import Failure, Link, links
from tests.client.running import run
from tests.waiting import until

TTL_S, CLAIM_S = 2.0, 2.0
DONE, AT_WORK = "done", "at-work"
"""Under way when packets vanish: one is done just then, and that cannot be told; one is stopped half done."""
LATER = ("later0", "later1", "later2")
"""Come while nothing gets through. The worker's next claim waits at its node: some are handed out to nobody."""
ALL = {DONE, AT_WORK, *LATER}
KEPT, READER = "kept", "reader"


class Provider:
    """Its files, of which it removes those that it is told to, under `name`."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self._directory = name, directory
        self.begun: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.stopped: list[str] = []
        self.may_end = asyncio.Event()
        for each in (*ALL, KEPT):
            (directory / each).touch()

    async def clean_up(self, item: ReclaimItem) -> None:
        name = item.resource_id.rpartition("/")[2]
        self.begun[name] += 1
        with contextlib.suppress(FileNotFoundError):
            (self._directory / name).unlink()
            self.effects[name] += 1
        await self.may_end.wait()
        if name == AT_WORK and item.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.append(name)

    @property
    def left(self) -> set[str]:
        return {path.name for path in self._directory.iterdir()}


class Ground:
    """The provider far away behind a link, and somebody near who sees what the cluster does."""

    def __init__(self, near: Client, provider: Provider, link: Link) -> None:
        self.near, self.provider, self.link = near, provider, link

    def id_of(self, name: str) -> str:
        return f"{self.provider.name}/{name}"

    async def register(self, *names: str, buffer_s: float) -> None:
        for name in names:
            await self.near.resources.register(
                self.id_of(name), provider=self.provider.name, kind="file", safety_buffer=buffer_s
            )

    async def acquire(self, name: str) -> None:
        body = {"resource_id": self.id_of(name), "client_id": READER, "lease_duration_ms": 120_000}
        await self.near.call("POST", "/leases/acquire", body)

    async def release(self, name: str) -> None:
        await self.near.call("POST", "/leases/release", {"resource_id": self.id_of(name), "client_id": READER})

    async def items(self) -> dict[str, str]:
        """What is to be cleaned up, and how far that is."""
        answer = await self.near.call("GET", "/reclaims", query={"provider": self.provider.name})
        return {item["resource_id"].rpartition("/")[2]: item["state"] for item in answer["items"]}

    async def acknowledged(self, revision: int) -> Counter[str]:
        """How often each was, as the log has it."""
        found = Counter[str]()
        await self.acquire("last")
        async for event in self.near.watch(
            prefix=f"{self.provider.name}/", kinds=["reclaim_done", "lease_acquired"], from_revision=revision + 1
        ):
            if event.key == self.id_of("last"):
                break
            if event.kind == "reclaim_done":
                found[event.key.rpartition("/")[2]] += 1
        return found


async def packets_vanish(ground: Ground, verifier: LeaseVerifier, failure: Failure) -> None:
    provider, kept = ground.provider, ground.id_of(KEPT)
    assert verifier.check(kept, READER)
    ground.link.cut(failure)
    provider.may_end.set()

    def refuses() -> bool:
        age_s, answer = verifier.age, verifier.check(kept, READER)
        assert not answer or age_s < TTL_S, "yes, after it had heard nothing for longer than its ttl"
        return not answer

    await until(refuses, "no, though the lease is there")
    assert not verifier.fresh and verifier.last_seen_leased(kept)
    await ground.register(*LATER, buffer_s=0.0)

    async def nobody_has_them() -> bool:
        found = await ground.items()
        return set(found) == ALL and "claimed" not in found.values()

    await until(nobody_has_them, "the claims to run out, each unheard")
    assert provider.stopped == [AT_WORK] and provider.left == {*LATER, KEPT}


async def packets_come_again(ground: Ground, verifier: LeaseVerifier) -> None:
    await ground.release(KEPT)
    ground.link.mend()

    async def nothing_left() -> bool:
        return not await ground.items()

    await until(nothing_left, "all clean-ups")
    await until(lambda: verifier.fresh, "it to know again")
    assert not verifier.check(ground.id_of(KEPT), READER), "that lease is over"
    await ground.acquire(KEPT)
    await until(lambda: verifier.check(ground.id_of(KEPT), READER), "the next lease")


@contextlib.asynccontextmanager
async def at_work(far: Client, provider: Provider) -> AsyncIterator[LeaseVerifier]:
    worker = asyncio.create_task(far.reclaim_worker(provider.name, provider.clean_up, claim=CLAIM_S, grace=0.1))
    try:
        async with LeaseVerifier(far, f"{provider.name}/", ttl=TTL_S) as verifier:
            await until(lambda: provider.begun.keys() == {DONE, AT_WORK}, "its first clean-ups")
            yield verifier
    finally:
        worker.cancel()
        await asyncio.wait({worker}, timeout=90)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("failure", ["hole", "swallow"])
def test_it_fails_closed_and_cleans_up_once_when_it_is_heard_again(
    endpoints: list[str], tmp_path: Path, failure: Failure
) -> None:
    async def scenario() -> None:
        provider = Provider(f"vanished-{failure}", tmp_path)
        async with (
            links(1, endpoints) as ways,
            Client(endpoints) as near,
            Client(ways[0].endpoints, timeout=1.0) as far,
        ):
            ground = Ground(near, provider, ways[0])
            revision: Any = (await near.call("GET", "/cluster"))["revision"]
            await ground.register(KEPT, buffer_s=600.0)
            await ground.acquire(KEPT)
            await ground.register(DONE, AT_WORK, buffer_s=0.0)
            async with at_work(far, provider) as verifier:
                await packets_vanish(ground, verifier, failure)
                await packets_come_again(ground, verifier)
            assert provider.left == {KEPT} and provider.begun.keys() == ALL
            assert provider.effects == Counter(ALL) == await ground.acknowledged(revision)

    run(scenario)
