"""Watches over SSE and WebSocket: in order, without gaps, filtered, resumed, compacted, cut off with a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from cluster.ports import Denied
from coordinator.clientlimits import WATCHES_PER_NAMESPACE
from coordinator.http import watch
from coordinator.machine import commands as c
from coordinator.machine.events import Compacted, EventRing
from coordinator.watches import END, EVENTS_A_READ, Filter
from tests.http.scripted import Client
from tests.service.lone import LoneHost, serving
from tests.waiting import until

WATCH = "/api/v1/watch"
SSE = {"Accept": "text/event-stream"}


def scenario(run: Callable[[LoneHost, Client], Awaitable[None]], host: LoneHost | None = None) -> None:
    async def start() -> None:
        mine = host or LoneHost()
        async with serving(mine) as client:
            async with asyncio.timeout(90):
                await run(mine, client)

    asyncio.run(start())


async def sse(answer: aiohttp.ClientResponse, count: int) -> list[dict[str, Any]]:
    """The next `count` messages, each with the fields of its lines."""
    messages: list[dict[str, Any]] = []
    fields: dict[str, Any] = {}
    while len(messages) < count:
        line = (await answer.content.readline()).decode()
        assert line, "the stream ended"
        if line == "\n":
            if "data" in fields:
                messages.append(fields)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = json.loads(value) if name == "data" else value
    return messages


def keys(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["data"]["kind"], message["data"]["key"]) for message in messages]


def test_from_the_beginning_and_on() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        (held,) = host.run(c.AcquireLock("k", "a", 10_000))
        async with client.get(WATCH + "?from_revision=1", headers=SSE) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert answer.headers["X-Holdfast-Revision"] == "1"
            first = await sse(answer, 1)
            assert first[0]["data"] == {
                "id": "1.1", "revision": 1, "kind": "lock_granted", "namespace": "default", "key": "k", "owner": "a",
                "lease_id": f"{held.lease_id:016x}", "fencing_token": held.fencing_token,
            }  # fmt: skip
            host.run(c.ReleaseLock("k", "a", held.fencing_token), c.AcquireLease("r", "b", 1_000))
            assert keys(await sse(answer, 2)) == [("lock_released", "k"), ("lease_acquired", "r")]
            host.now_ms += 5_000
            host.run(c.Sweep(10))
            assert keys(await sse(answer, 1)) == [("lease_expired", "r")]

    scenario(run)


def test_from_now_tells_nothing_old() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(c.AcquireLease("old", "a", 1_000))
        async with client.get(WATCH, headers=SSE) as answer:
            host.run(c.AcquireLease("new", "a", 1_000))
            assert keys(await sse(answer, 1)) == [("lease_acquired", "new")]

    scenario(run)


def test_resuming_in_the_middle_of_a_revision_neither_skips_nor_repeats() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(c.AcquireLeases(tuple(f"r{n}" for n in range(10)), "a", 60_000))
        seen: list[str] = []
        last = ""
        for count in (3, 1, 6):
            headers = {**SSE, "Last-Event-ID": last} if last else SSE
            async with client.get(WATCH + "?from_revision=1", headers=headers) as answer:
                messages = await sse(answer, count)
                last = messages[-1]["id"]
                seen += [message["data"]["key"] for message in messages]
        assert seen == [f"r{n}" for n in range(10)]
        host.run(c.AcquireLease("next", "a", 1_000))
        async with client.get(WATCH, headers={**SSE, "Last-Event-ID": last}) as answer:
            assert keys(await sse(answer, 1)) == [("lease_acquired", "next")]

    scenario(run)


def test_filters() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(
            c.AcquireLease("tmp/1", "a", 60_000),
            c.AcquireLease("tmp/2", "b", 60_000),
            c.AcquireLock("tmp/3", "a", 9_999),
        )
        host.run(c.ReleaseLease("tmp/1", "a"), c.AcquireLease("etc/1", "a", 60_000))
        for query, expected in (
            ("prefix=tmp/", ["tmp/1", "tmp/2", "tmp/3", "tmp/1"]),
            ("owner=b", ["tmp/2"]),
            ("kinds=lease_released,lock_granted", ["tmp/3", "tmp/1"]),
            ("prefix=tmp/&owner=a&kinds=lease_acquired", ["tmp/1"]),
        ):
            async with client.get(f"{WATCH}?from_revision=1&{query}", headers=SSE) as answer:
                assert [key for _, key in keys(await sse(answer, len(expected)))] == expected
        host.run(c.PutNamespace(9, 9, 9, 9, 999), namespace="team")
        host.run(c.AcquireLease("theirs", "a", 1_000), namespace="team")
        async with client.get(f"{WATCH}?from_revision=1&namespace=team", headers=SSE) as answer:
            assert "theirs" in [key for _, key in keys(await sse(answer, 2))]

    scenario(run)


def test_progress_is_told_to_who_asks() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        async with client.get(f"{WATCH}?progress_ms=100&prefix=nothing", headers=SSE) as answer:
            host.run(c.AcquireLease("r", "a", 1_000))
            (message,) = await sse(answer, 1)
            assert (message["event"], message["data"], message["id"]) == (
                "progress", {"kind": "progress", "revision": 1}, "1",
            )  # fmt: skip

    scenario(run)


def test_compaction_before_and_during_a_watch() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.replica.machine._ring = EventRing(max_events=4)
        for number in range(10):
            host.run(c.AcquireLease(f"r{number}", "a", 60_000))
        answer = await client.get(WATCH + "?from_revision=1", headers=SSE)
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["details"]) == (410, "compacted", {"revision": 7})
        async with client.get(WATCH + "?from_revision=7", headers=SSE) as streamed:
            assert [key for _, key in keys(await sse(streamed, 4))] == ["r6", "r7", "r8", "r9"]
            # More than the ring holds, before the watch gets a turn.
            for number in range(10, 20):
                host.run(c.AcquireLease(f"r{number}", "a", 60_000))
            told = await sse(streamed, 2)
            assert (told[0]["event"], told[0]["data"]) == ("compacted", {"kind": "compacted", "revision": 17})
            assert told[1]["data"] == {"kind": "end", "reason": "compacted"}
            assert await streamed.content.read() == b""

    scenario(run)


def test_a_websocket() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(c.AcquireLease("r0", "a", 60_000))
        async with client.ws_connect(WATCH + "?from_revision=1") as socket:
            assert (await socket.receive_json())["key"] == "r0"
            host.run(c.AcquireLease("r1", "a", 60_000))
            event = await socket.receive_json()
            assert (event["key"], event["id"]) == ("r1", "2.1")
        async with client.ws_connect(WATCH + "?after=1.1") as socket:
            assert (await socket.receive_json())["key"] == "r1"
        await until(lambda: not host.replica.hub.watches, "the watch to have ended")
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(WATCH + "?kinds=nothing")
        assert refused.value.status == 400

    scenario(run)


def test_a_stopping_node_says_so() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        async with client.ws_connect(WATCH) as socket, client.get(WATCH, headers=SSE) as answer:
            host.replica.hub.stop()
            assert (await socket.receive()).type == aiohttp.WSMsgType.CLOSE
            assert socket.close_code == aiohttp.WSCloseCode.GOING_AWAY
            assert (await sse(answer, 1))[0]["data"]["reason"] == "stopping"

    scenario(run)


def test_a_node_that_hears_of_no_leader_sends_its_readers_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the only one: cut off, or removed without having heard of it. Then nothing would ever be told here."""
    monkeypatch.setattr(watch, "BEHIND_S", 0.3)

    async def run(host: LoneHost, client: Client) -> None:
        # It follows, and nobody has read its state for long: that is no reason.
        host.staleness_s = 1e9
        async with client.get(WATCH + "?progress_ms=100", headers=SSE) as streamed:
            assert [told["event"] for told in await sse(streamed, 6)] == ["progress"] * 6
            host.silence_s = 0.3
            told = await sse(streamed, 1)
            while told[0]["event"] == "progress":
                told = await sse(streamed, 1)
            assert told[0]["data"] == {"kind": "end", "reason": "behind"}

    scenario(run)


def test_a_slow_reader_is_cut_off_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SLOW_S", 0.2)

    async def run(host: LoneHost, client: Client) -> None:
        reader, writer = await asyncio.open_connection(client.host, client.port, limit=1 << 12)
        writer.write(f"GET {WATCH} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode())
        await reader.readuntil(b"retry: 1000\n\n")
        for _ in range(60):
            host.run(c.AcquireLeases(tuple("x" * 200 + f"{host.applied}-{n}" for n in range(1_000)), "a", 60_000))
        cut = host.replica.telemetry.watches_cut
        await until(lambda: cut, "the reader to be cut off")
        assert dict(cut) == {"slow_reader": 1}
        assert host.replica.hub.watches == 0
        # What was on its way arrives, and then the reason.
        rest = await reader.read(-1)
        assert b'"reason": "slow_reader"' in rest[-200:]
        writer.close()

    scenario(run)


@pytest.mark.parametrize("last", ["x", "1.x", "-1", "1" * 40, ".1"])
def test_ids_that_are_none(last: str) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        answer = await client.get(WATCH, headers={**SSE, "Last-Event-ID": last})
        assert (answer.status, (await answer.json())["error"]["details"]["field"]) == (400, "Last-Event-ID")

    scenario(run)


def test_neither_socket_nor_stream() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        answer = await client.get(WATCH)
        assert (answer.status, (await answer.json())["error"]["details"]["field"]) == (400, "Accept")

    scenario(run)


def test_a_long_backlog_is_read_in_pieces_and_whole() -> None:
    """A watch from far back must not hold the node up: it takes turns, also when its filter wants nothing of it."""

    async def run(host: LoneHost, client: Client) -> None:
        for number in range(3 * EVENTS_A_READ):
            host.run(c.AcquireLease(f"r{number}", "a", 60_000))
        following = host.replica.hub.watch(Filter("default", "r", frozenset(), ""), (0, END))
        pieces = []
        while piece := following.read():
            assert not isinstance(piece, Compacted) and len(piece) <= EVENTS_A_READ
            pieces.append(piece)
            if len(piece) == EVENTS_A_READ:
                await asyncio.wait_for(following.news(), 1)
        assert [seen.event.key for piece in pieces for seen in piece] == [f"r{n}" for n in range(3 * EVENTS_A_READ)]
        async with client.get(f"{WATCH}?from_revision=1&prefix=r{3 * EVENTS_A_READ - 1}", headers=SSE) as answer:
            assert keys(await sse(answer, 1)) == [("lease_acquired", f"r{3 * EVENTS_A_READ - 1}")]

    scenario(run)


def test_watches_that_wait_for_a_node_to_catch_up_have_their_places() -> None:
    """As many as came meanwhile would be open at once."""

    class Behind(LoneHost):
        def __init__(self) -> None:
            super().__init__()
            self.caught_up = asyncio.Event()

        async def read_index(self, timeout: float) -> int | Denied:
            self.reads += 1
            await self.caught_up.wait()
            return self.applied

    host = Behind()

    async def run(_: LoneHost, client: Client) -> None:
        hub = host.replica.hub
        kept = [hub.watch(Filter("default")) for _ in range(WATCHES_PER_NAMESPACE - 1)]
        last = asyncio.create_task(client.get(f"{WATCH}?from_revision=2", headers=SSE))
        await until(lambda: host.reads == 1, "a watch that waits for the node")
        for query in ("", "?from_revision=2"):
            async with client.get(WATCH + query, headers=SSE) as answer:
                assert answer.status == 429
                assert (await answer.json())["error"]["code"] == "too_many_watches"
        host.run(c.AcquireLease("r", "a", 60_000))
        host.run(c.AcquireLease("s", "a", 60_000))
        host.caught_up.set()
        async with await last as answer:
            assert answer.status == 200
            assert keys(await sse(answer, 1)) == [("lease_acquired", "s")]
        await until(lambda: hub.watches == len(kept), "a place that was given back")
        async with client.get(f"{WATCH}?from_revision=9", headers=SSE) as answer:
            assert answer.status == 400
        assert hub.watches == len(kept), "one that does not begin has none"

    scenario(run, host)


@pytest.mark.parametrize("behind", [0, 5])
def test_a_place_the_log_has_not_reached_is_refused(behind: int) -> None:
    """A node that is behind catches up first: what another node has told is no future."""

    class Behind(LoneHost):
        async def read_index(self, timeout: float) -> int | Denied:
            for number in range(behind):
                self.run(c.AcquireLease(f"r{number}", "a", 60_000))
            return await super().read_index(timeout)

    async def run(host: LoneHost, client: Client) -> None:
        host.run(c.AcquireLease("r", "a", 60_000))
        async with client.get(f"{WATCH}?from_revision=2", headers=SSE) as answer:
            assert (answer.status, host.reads) == (200, 0), "what is known here needs no other node"
        first = 1 + behind
        for name, query, headers in (
            ("from_revision", f"?from_revision={first + 2 + behind}", SSE),
            ("after", f"?after={first + 2 * behind + 1}.1", SSE),
            ("Last-Event-ID", "", {**SSE, "Last-Event-ID": f"{first + 3 * behind + 1}"}),
        ):
            async with client.get(WATCH + query, headers=headers) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["details"]["field"]) == (400, name), error
                assert error["details"]["revision"] == host.applied
        async with client.get(f"{WATCH}?from_revision={host.applied + 1 + behind}", headers=SSE) as answer:
            assert answer.status == 200
            host.run(c.AcquireLease("next", "a", 1_000))
            assert keys(await sse(answer, 1))[0][0] == "lease_acquired"

    scenario(run, Behind())


@pytest.mark.parametrize("place", ["12.", ".", ".1", "1.x", "-1", "1.0", "0.0", "1.00"])
def test_half_an_event_id_is_refused(place: str) -> None:
    """Nor is there an event before the first of a revision: whoever asks from there would miss all that it has."""

    async def run(host: LoneHost, client: Client) -> None:
        host.run(c.AcquireLease("r", "a", 60_000))
        for name, query, headers in (
            ("after", f"?after={place}", SSE),
            ("Last-Event-ID", "", {**SSE, "Last-Event-ID": place}),
        ):
            async with client.get(WATCH + query, headers=headers) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]["details"]["field"] == name

    scenario(run)
