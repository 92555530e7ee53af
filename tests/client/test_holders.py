"""Holders of copies through the SDK, on a real cluster: told of deaths, back after a restart, fenced and verified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import Client, Compacted, Gone, NotFound, NotHeld
from coordinator.client.holders import NotDropped
from coordinator.client.watch import Event
from tests.client.running import run
from tests.waiting import until


class Disk:
    """Where a holder has its copies: ids to incarnations."""

    def __init__(self) -> None:
        self.copies: dict[str, str] = {}
        self.told: list[str] = []

    def drop(self, resource_id: str, incarnation: str) -> None:
        self.told.append(resource_id)
        if self.copies.get(resource_id) == incarnation:
            del self.copies[resource_id]


async def provide(client: Client, *names: str) -> None:
    for name in names:
        await client.resources.register(name, provider=names[0], kind="k", pinned=True, safety_buffer=0)


async def kill(client: Client, provider: str, *names: str) -> None:
    """Deleted and cleaned up: gone."""
    for name in names:
        await client.resources.delete(name, force=True)
    left = len(names)
    while left:
        claim = {"provider": provider, "worker_id": "w", "wait_ms": 20_000, "max": left}
        items = (await client.call("POST", "/reclaims/claim", claim, waits=20.0))["items"]
        told = [{"reclaim_id": item["reclaim_id"], "token": item["token"]} for item in items]
        await client.call("POST", "/reclaims/ack", {"worker_id": "w", "items": told})
        left -= len(items)


async def keep(holder: Any, disk: Disk, name: str) -> str:
    async def fetch(incarnation: str) -> None:
        disk.copies[name] = incarnation

    incarnation: str = await holder.keep(name, fetch)
    return incarnation


async def standing(client: Client, name: str) -> bool:
    page = await client.call("GET", "/tombstones", query={"limit": "1000"})
    return any(each["resource_id"] == name for each in page["tombstones"])


def test_it_is_told_drops_and_acknowledges(endpoints: list[str]) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with Client(endpoints) as client, client.holder("told", disk.drop) as holder:
            await provide(client, "ho/a", "ho/b")
            await keep(holder, disk, "ho/a")
            await keep(holder, disk, "ho/b")
            await kill(client, "ho/a", "ho/a")
            await until(lambda: "ho/a" not in disk.copies, "the tombstone is told")

            async def purged() -> bool:
                return not await standing(client, "ho/a")

            await until(purged, "it is purged")
            await provide(client, "ho/a")
            assert (await keep(holder, disk, "ho/a")) != "" and holder.serving
            assert set(disk.copies) == {"ho/a", "ho/b"}
            await holder.leave()

    run(scenario)


def test_offline_through_delete_and_tombstone_and_back(endpoints: list[str], tmp_path: Path) -> None:
    """Fault 21: the dead one is refused for as long as it takes, and dropped before anything is served."""

    async def scenario() -> None:
        disk, file = Disk(), tmp_path / "edge.json"
        async with Client(endpoints) as client:
            await provide(client, "of/a", "of/b")
            async with client.holder("edge", disk.drop, copies=lambda: disk.copies, state_file=file) as holder:
                await keep(holder, disk, "of/a")
                await keep(holder, disk, "of/b")
            await kill(client, "of/a", "of/a")
            assert await standing(client, "of/a") and "of/a" in disk.copies
            with pytest.raises(Gone) as refused:
                await provide(client, "of/a")
            assert refused.value.code == "tombstoned"
            async with client.holder("edge", disk.drop, copies=lambda: disk.copies, state_file=file) as holder:
                await holder.catch_up()
                assert set(disk.copies) == {"of/b"} and holder.serving
                assert not await standing(client, "of/a")
                await provide(client, "of/a")
                await holder.leave()
            assert not file.exists()

    run(scenario)


def test_a_removed_holder_verifies_before_it_serves(endpoints: list[str], tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, file = Disk(), tmp_path / "edge.json"
        async with Client(endpoints) as client:
            await provide(client, "rm/a", "rm/b")
            async with client.holder("gone", disk.drop, copies=lambda: disk.copies, state_file=file) as holder:
                await keep(holder, disk, "rm/a")
                kept = await keep(holder, disk, "rm/b")
            await kill(client, "rm/a", "rm/a")
            await client.call("DELETE", "/holders/gone")

            async def purged() -> bool:
                return not await standing(client, "rm/a")

            await until(purged, "nothing waits for it any more")
            await provide(client, "rm/a")
            async with client.holder("gone", disk.drop, copies=lambda: disk.copies, state_file=file) as holder:
                assert holder.serving
                assert disk.copies == {"rm/b": kept}, "rm/a lives again, but the copy is of the dead one"
                await kill(client, "rm/a", "rm/b")
                await until(lambda: not disk.copies, "what it kept is told like anything else")
                await holder.leave()

    run(scenario)


def test_removed_while_it_runs(endpoints: list[str]) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with Client(endpoints) as client, client.holder("live", disk.drop, session_ttl=60) as holder:
            await provide(client, "li/a")
            await keep(holder, disk, "li/a")
            first = await client.call("GET", "/holders/live")
            await client.call("DELETE", f"/sessions/{first['session_id']}")

            async def again() -> bool:
                page = await client.call("GET", "/holders", query={"limit": "1000"})
                sessions = [each["session_id"] for each in page["holders"] if each["holder_id"] == "live"]
                return holder.serving and sessions not in ([], [first["session_id"]])

            await until(again, "it has verified under another session")
            assert "li/a" in disk.copies and disk.told == []
            await kill(client, "li/a", "li/a")
            await until(lambda: "li/a" not in disk.copies, "the tombstone is told")

    run(scenario)


def test_what_dies_while_it_is_fetched_is_told_after(endpoints: list[str]) -> None:
    async def scenario() -> None:
        disk = Disk()
        async with Client(endpoints) as client, client.holder("slow", disk.drop) as holder:
            await provide(client, "sl/a")
            fetching, go_on = asyncio.Event(), asyncio.Event()

            async def fetch(incarnation: str) -> None:
                fetching.set()
                await go_on.wait()
                disk.copies["sl/a"] = incarnation

            keeping = asyncio.create_task(holder.keep("sl/a", fetch))
            await fetching.wait()
            await kill(client, "sl/a", "sl/a")
            assert await standing(client, "sl/a") and disk.told == []
            go_on.set()
            await keeping
            await until(lambda: not disk.copies, "the copy is dropped after it was stored")
            await holder.leave()

    run(scenario)


def test_what_could_not_be_dropped_is_not_acknowledged(endpoints: list[str]) -> None:
    async def scenario() -> None:
        disk, failures = Disk(), 2

        async def drop(resource_id: str, incarnation: str) -> None:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                assert await standing(client, "fa/a")
                raise OSError("the disk is busy")
            disk.drop(resource_id, incarnation)

        async with Client(endpoints) as client, client.holder("fails", drop) as holder:
            await provide(client, "fa/a")
            await keep(holder, disk, "fa/a")
            await kill(client, "fa/a", "fa/a")
            await until(lambda: not disk.copies, "it was tried again")
            assert failures < 0
            await holder.leave()
            with pytest.raises(NotHeld):
                await holder.keep("fa/a")

    run(scenario)


def test_who_left_does_not_join_again(endpoints: list[str], tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, file = Disk(), tmp_path / "left.json"
        async with Client(endpoints) as client, client.holder("left", disk.drop, state_file=file) as holder:
            await holder.leave()
            # Whoever watches is told of it long before this one is.
            async with client.holder("after-left", disk.drop) as other:
                await provide(client, "le/a")
                await keep(other, disk, "le/a")
                await kill(client, "le/a", "le/a")
                await until(lambda: not disk.copies, "another is told of a tombstone")
                await other.leave()
            with pytest.raises(NotFound):
                await client.call("GET", "/holders/left")
            assert not holder.serving and not file.exists()

    run(scenario)


def test_one_that_cannot_begin_leaves_no_session(endpoints: list[str]) -> None:
    """It would be kept for as long as the client lives, and nobody could end it."""

    async def scenario() -> None:
        def drop(resource_id: str, incarnation: str) -> None:
            raise OSError("the disk is full")

        async with Client(endpoints) as client:
            copies = {"be/never": "0000000000000001"}
            with pytest.raises(NotDropped):
                async with client.holder("cannot-begin", drop, copies=lambda: copies, session_ttl=30.0):
                    raise AssertionError
            sessions = (await client.call("GET", "/sessions"))["sessions"]
            assert client.client_id not in {each["client_id"] for each in sessions}

    run(scenario)


class Deaf(Client):
    """Hears nothing of its first watch, and then that it is too late to hear it."""

    hears: asyncio.Event | None = None

    async def watch(self, **more: Any) -> AsyncGenerator[Event, None]:  # type: ignore[override]
        if self.hears is None:
            self.hears = asyncio.Event()
            await self.hears.wait()
            raise Compacted("events are gone", code="compacted")
        async for event in super().watch(**more):
            yield event


def test_removed_while_nobody_watched(endpoints: list[str]) -> None:
    """It has no tombstone to acknowledge, so nothing but a question tells it that it is fenced."""

    async def scenario() -> None:
        disk = Disk()
        async with Client(endpoints) as client, Deaf(endpoints) as deaf, deaf.holder("deaf", disk.drop) as holder:
            await provide(client, "de/a")
            await keep(holder, disk, "de/a")
            await until(lambda: deaf.hears is not None, "it watches")
            await client.call("DELETE", "/holders/deaf")
            await kill(client, "de/a", "de/a")
            assert not await standing(client, "de/a") and "de/a" in disk.copies
            assert deaf.hears is not None
            deaf.hears.set()
            await until(lambda: not disk.copies, "it has verified, and dropped what is dead")
            await until(lambda: holder.serving, "it serves again")
            await holder.leave()

    run(scenario)


def test_a_state_file_that_cannot_be_written_does_not_stop_it(endpoints: list[str], tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, place = Disk(), tmp_path / "place"
        place.mkdir()
        async with Client(endpoints) as client, client.holder("full", disk.drop, state_file=place / "f.json") as holder:
            await provide(client, "fu/a", "fu/b")
            await keep(holder, disk, "fu/a")
            await keep(holder, disk, "fu/b")
            place.rename(tmp_path / "away")
            await kill(client, "fu/a", "fu/a")
            await until(lambda: "fu/a" not in disk.copies, "the tombstone is told")
            (tmp_path / "away").rename(place)
            await kill(client, "fu/a", "fu/b")
            await until(lambda: not disk.copies, "it follows still")
            await holder.leave()

    run(scenario)
