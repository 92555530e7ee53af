"""A watch sees every event once and in order, whatever happens to connections and nodes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from coordinator.client import Client, Compacted, Event, Invalid, Unavailable
from tests.cli.processes import Up, up
from tests.client.gate import Gate
from tests.client.running import cable_to, endpoints_of, kill_leader, leader_of, run
from tests.waiting import until

EVENTS_KEPT = 1 << 17
BATCH = 2_000


async def _collect(client: Client, into: list[Event], first: int, prefix: str) -> None:
    async for event in client.watch(prefix=prefix, from_revision=first):
        into += [event]


async def _write(client: Client, prefix: str, numbers: range) -> None:
    """Two events each: an arrival and a departure."""
    for number in numbers:
        lease = await client.acquire_lease(f"{prefix}{number}", ttl=60)
        await lease.release()


async def _from_the_start(client: Client, first: int, prefix: str, count: int) -> list[Event]:
    found: list[Event] = []
    async with contextlib.aclosing(client.watch(prefix=prefix, from_revision=first)) as events:
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def test_a_watch_goes_on_when_the_leader_dies(tmp_path: Path) -> None:
    async def scenario(cluster: Up) -> None:
        seen: list[Event] = []
        async with Client(endpoints_of(cluster)) as client, Client(endpoints_of(cluster)) as writer:
            leader = f"http://{(await asyncio.to_thread(leader_of, cluster))['http']}"
            while client.calls.current != leader:
                client.calls.move_on()
            watching = asyncio.create_task(_collect(client, seen, 1, "w/"))
            await _write(writer, "w/", range(100))
            await until(lambda: bool(seen), "the first events")
            assert client.calls.current == leader
            await asyncio.to_thread(kill_leader, cluster)
            await until(lambda: client.calls.current != leader, "the watch to have broken")
            await _write(writer, "w/", range(100, 300))
            await until(lambda: len(seen) >= 600, "all events")
            again = await _from_the_start(writer, 1, "w/", 600)
            assert [event.id for event in seen] == [event.id for event in again]
            assert len({event.revision for event in seen}) == len(seen) == 600
            assert seen[-1].key == "w/299" and seen[-1].kind == "lease_released"
            await _cancel(watching)

    with up(tmp_path / "data") as cluster:
        run(lambda: scenario(cluster))


def test_a_connection_that_breaks_again_and_again(cluster: Up, endpoints: list[str]) -> None:
    async def scenario() -> None:
        seen: list[Event] = []
        with Gate([cluster.endpoint(number) for number in (1, 2, 3)]) as gate:
            async with Client(gate.endpoints) as client, Client(endpoints) as writer:
                first = (await writer.call("GET", "/cluster"))["revision"] + 1
                watching = asyncio.create_task(_collect(client, seen, first, "cb/"))
                for turn in range(10):
                    before = len(seen)
                    await _write(writer, "cb/", range(10 * turn, 10 * turn + 10))
                    await until(lambda before=before: len(seen) > before, "some events")
                    gate.cut()
                    gate.mend()
                await until(lambda: len(seen) >= 200, "all events")
                again = await _from_the_start(writer, first, "cb/", 200)
                assert [event.id for event in seen] == [event.id for event in again]
                await _cancel(watching)

    run(scenario)


def test_from_now_on_and_only_what_is_asked_for(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, Client(endpoints) as other:
            await _write(client, "f/", range(3))
            events = client.watch(prefix="f/", kinds=["lease_released", "lock_granted"], owner=client.client_id)
            reading = asyncio.ensure_future(anext(events))

            async def attempt() -> bool:
                """Until the watch has begun, there is nothing to be seen."""
                await _write(other, "f/", range(3, 4))
                await _write(client, "f/", range(4, 5))
                return reading.done()

            await until(attempt, "the first event")
            event = await reading
            assert (event.key, event.kind, event.owner) == ("f/4", "lease_released", client.client_id)
            assert event.lease_id and event.fencing_token
            resumed = client.watch(prefix="f/", owner=client.client_id, after=event.id)
            await _write(client, "f/", range(9, 10))
            keys = {(await anext(resumed)).revision for _ in range(2)}
            assert min(keys) > event.revision
            for each in (events, resumed):
                await each.aclose()
            with pytest.raises(Invalid):
                await anext(client.watch(from_revision=1 << 60))
            with pytest.raises(Invalid):
                await anext(client.watch(kinds=["no_such_kind"]))

    run(scenario)


def test_nobody_heard(cluster: Up) -> None:
    async def scenario() -> None:
        with Gate([cluster.endpoint(1)]) as gate:
            async with Client(gate.endpoints) as client:
                gate.cut()
                with pytest.raises(Unavailable, match="after='7'"):
                    await anext(client.watch(from_revision=8, patience=0.5))

    run(scenario)


def test_what_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    """On a cluster of its own: half a minute later the leases end for good, and with that the events of others."""

    async def scenario(cluster: Up) -> None:
        async with Client(endpoints_of(cluster), namespace="default") as client:
            first = (await client.call("GET", "/cluster"))["revision"] + 1
            async with client.session(ttl=60) as session:
                names = [f"gone/{n}" for n in range(EVENTS_KEPT + 2 * BATCH)]
                await session.acquire_leases(names, timeout=60)
            with pytest.raises(Compacted) as gone:
                await anext(client.watch(from_revision=first))
            assert gone.value.revision > first and gone.value.code == "compacted"
            async with contextlib.aclosing(client.watch(from_revision=gone.value.revision)) as events:
                assert (await anext(events)).revision >= gone.value.revision

    with up(tmp_path / "data") as cluster:
        run(lambda: scenario(cluster))


def test_a_node_that_says_nothing_is_left(cluster: Up, endpoints: list[str]) -> None:
    async def scenario() -> None:
        seen: list[Event] = []
        async with cable_to(cluster) as cable, Client(endpoints) as writer:
            client = Client([cable.endpoint, *endpoints[1:]])
            while client.calls.current != cable.endpoint:
                client.calls.move_on()
            watching = asyncio.create_task(_collect(client, seen, await _now(writer), "silent/"))
            await _write(writer, "silent/", range(1))
            await until(lambda: len(seen) == 2, "the first events")
            cable.pull()
            await _write(writer, "silent/", range(1, 2))
            await until(lambda: len(seen) == 4, "the others, from another node")
            await _cancel(watching)
            await client.close()

    run(scenario)


async def _now(client: Client) -> int:
    return int((await client.call("GET", "/cluster"))["revision"]) + 1
