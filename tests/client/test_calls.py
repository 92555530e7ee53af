"""Requests: whom they go to, which are repeated and how, and when they end. Against nodes that answer as told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from aiohttp import web

from coordinator.client import (
    Client,
    Denied,
    Invalid,
    NotAllowed,
    OutcomeUnknown,
    TooMuch,
    Unavailable,
    client_context,
    clock,
)
from coordinator.client.calls import FIRST_PAUSE_S, LAST_ATTEMPT_AT, PAUSES, Answer, Calls, _Request, _Retry
from tests.client.running import run
from tests.client.scripted import Asked, Reply, Scripted, ok, refused, scripted
from tests.waiting import until

SLACK_S = 10.0
"""What a busy machine may add."""


def in_turn(*replies: web.Response | None) -> Reply:
    """One after the other, the last again and again."""
    left: Iterator[web.Response | None] = itertools.chain(replies[:-1], itertools.repeat(replies[-1]))

    async def reply(asked: Asked) -> web.Response | None:
        said = next(left)
        # A response can be sent once.
        return said and web.Response(status=said.status, body=said.body, headers=said.headers)

    return reply


async def silent(asked: Asked) -> web.Response | None:
    await asyncio.Event().wait()
    return None


@contextlib.asynccontextmanager
async def one(reply: Reply, timeout: float = 10.0) -> AsyncIterator[tuple[Scripted, Client]]:
    async with scripted(reply) as node, Client(node.address, timeout=timeout) as client:
        yield node, client


# --- the leader -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_once_it_knows_who_leads_it_asks_the_leader(host: str) -> None:
    async def scenario() -> None:
        nodes: dict[str, Scripted] = {}

        def as_node(name: str) -> Reply:
            async def reply(asked: Asked) -> web.Response | None:
                members = [{"id": each, "http": node.address} for each, node in nodes.items()]
                return ok({"members": members, "by": name}, X_Holdfast_Leader="c")

            return reply

        async with contextlib.AsyncExitStack() as stack:
            for name in "abc":
                nodes[name] = await stack.enter_async_context(scripted(as_node(name)))
            endpoints = [f"http://{host}:{node.port}" for node in nodes.values()]
            client = await stack.enter_async_context(Client(endpoints))
            await client.call("GET", "/first")

            async def led() -> bool:
                return bool((await client.call("GET", "/look"))["by"] == "c")

            await until(led, "the leader to be asked")
            for _ in range(20):
                await client.call("GET", "/led")
            assert len(nodes["c"].of("/led")) == 20
            assert sum(len(node.of("/cluster")) for node in nodes.values()) <= 1

    run(scenario)


def test_a_node_that_is_gone_is_passed_over() -> None:
    async def scenario() -> None:
        async with scripted(silent) as gone:
            dead = gone.address
        async with scripted(in_turn(ok({}))) as node, Client([dead, node.address]) as client:
            for _ in range(5):
                await client.call("POST", "/thing")
            assert len(node.of("/thing")) == 5

    run(scenario)


# --- outcomes -------------------------------------------------------------------------------------------------------


def test_what_was_denied_is_not_repeated() -> None:
    async def scenario() -> None:
        async with one(in_turn(refused(403, "denied", "forbidden"))) as (node, client):
            with pytest.raises(NotAllowed) as told:
                await client.call("POST", "/thing")
            assert told.value.code == "forbidden" and len(node.asked) == 1
            node.reply = in_turn(refused(429, "denied", "quota_exceeded", Retry_After="1"))
            with pytest.raises(TooMuch):
                await client.call("POST", "/thing")
            node.reply = in_turn(refused(418, "denied"))
            with pytest.raises(Denied):
                await client.call("GET", "/thing")
            assert len(node.asked) == 3

    run(scenario)


def test_what_is_unknown_is_repeated_under_the_same_request_id() -> None:
    async def scenario() -> None:
        script = in_turn(refused(503, "unknown"), None, refused(500, "unknown"), refused(503, "retry"), ok({"done": 1}))
        async with one(script) as (node, client):
            assert await client.call("POST", "/thing", {"a": 1}) == {"done": 1}
            assert await client.call("POST", "/other") == {"done": 1}
            *attempts, other = node.asked
            assert len(attempts) == 5 and {asked.body["a"] for asked in attempts} == {1}
            assert len({asked.request_id for asked in attempts}) == 1 != other.request_id
            node.reply = in_turn(refused(503, "retry"), ok({}))
            await client.call("POST", "/named", request_id="mine")
            assert [asked.request_id for asked in node.of("/named")] == ["mine", "mine"]

    run(scenario)


def test_what_stays_unknown_says_under_which_request_id() -> None:
    async def scenario() -> None:
        async with one(in_turn(refused(503, "unknown"), refused(503, "retry")), timeout=0.3) as (node, client):
            with pytest.raises(OutcomeUnknown) as told:
                await client.call("POST", "/thing")
            assert len(node.asked) > 1 and told.value.request_id == node.asked[0].request_id
            with pytest.raises((Unavailable, OutcomeUnknown)) as ended:  # nothing it was told since was unknown
                await client.call("POST", "/thing")
            # The last attempt may have had less time left than an answer takes: then nobody told it anything.
            assert isinstance(ended.value, Unavailable) or "did not answer" in str(ended.value)
            node.reply = in_turn(refused(503, "unknown"))
            with pytest.raises(Unavailable):  # a read changes nothing, however it ended
                await client.call("GET", "/thing")

    run(scenario)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (200, "<html>", OutcomeUnknown),
        (502, "<html>", OutcomeUnknown),
        (502, '{"error": "bad gateway"}', OutcomeUnknown),
        (503, "[1]", OutcomeUnknown),
        (404, "<html>", Denied),
        (404, '{"error": null}', Denied),
        (429, '{"error": {"outcome": "retry"}}', Unavailable),
    ],
)
def test_what_stands_between_may_say_anything(status: int, text: str, kind: type[Exception]) -> None:
    """A proxy has pages of its own, and dates where nodes have seconds. None of it is a grant, or a fault of ours."""

    async def scenario() -> None:
        headers = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
        async with one(in_turn(web.Response(status=status, text=text, headers=headers)), 0.3) as (node, client):
            with pytest.raises(kind):
                await client.lock("k", wait=0).acquire()
            node.reply = in_turn(ok({"ttl_ms": 10_000, "fencing_token": 7}))
            assert (await client.lock("k", wait=0).acquire()).token == 7

    run(scenario)


# --- pauses, connections, deadlines ---------------------------------------------------------------------------------


def test_pauses_grow_up_to_a_part_of_the_time_and_are_no_two_alike() -> None:
    timeout = 2.0

    async def scenario() -> None:
        async with one(in_turn(refused(503, "retry")), timeout) as (node, client):
            with pytest.raises(Unavailable):
                await client.call("POST", "/thing")
            pauses = [after.at - before.at for before, after in itertools.pairwise(node.asked)]
            longest = timeout / PAUSES
            nominal = [min(FIRST_PAUSE_S * 2**number, longest) for number in range(len(pauses))]
            # The last is cut short by the deadline.
            assert all(pause > 0.45 * full for pause, full in zip(pauses[:-1], nominal, strict=False)), pauses
            at_most = [pause for pause, full in zip(pauses, nominal, strict=True) if full == longest]
            assert min(at_most) < longest, "none was shorter than the others could be"
            assert len(pauses) < 2 * (timeout / longest + len(nominal) - len(at_most))

    run(scenario)


def test_a_node_that_asks_for_a_pause_gets_one() -> None:
    async def scenario() -> None:
        async with one(in_turn(refused(429, "retry", "overloaded", Retry_After="0.4"), ok({}))) as (node, client):
            await client.call("POST", "/thing")
            first, second = node.asked
            assert second.at - first.at > 0.19

    run(scenario)


def test_connections_are_used_again() -> None:
    async def scenario() -> None:
        async with one(in_turn(ok({}))) as (node, client):
            for _ in range(10):
                await client.call("POST", "/thing")
            assert len({asked.peer for asked in node.asked}) == 1

    run(scenario)


@pytest.mark.parametrize(("method", "kind"), [("POST", OutcomeUnknown), ("GET", Unavailable)])
def test_a_call_ends_by_its_deadline(method: str, kind: type[Exception]) -> None:
    async def scenario() -> None:
        async with one(silent) as (node, client):
            begun = clock.now()
            with pytest.raises(kind):
                await client.call(method, "/thing", timeout=0.6)
            assert 0.55 < clock.now() - begun < 0.6 + SLACK_S
            assert len(node.asked) == 1

    run(scenario)


class Slow(Calls):
    """`answers_s`: how long each node takes to answer, by its number. Time is what attempts take."""

    def __init__(self, answers_s: Sequence[float], limit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__([f"http://{number}" for number in range(len(answers_s))], namespace="default", timeout=limit_s)
        self.members.turn_to("http://0")
        self._answers_s, self.passed_s, began = answers_s, 0.0, clock.now()
        self.tried: list[int] = []
        monkeypatch.setattr(clock, "now", lambda: began + self.passed_s)

    async def _attempt(self, request: _Request, endpoint: str, limit_s: float) -> Answer:
        self.tried.append(int(endpoint.removeprefix("http://")))
        answers_s = self._answers_s[self.tried[-1]]
        self.passed_s += min(answers_s, limit_s)
        if answers_s < limit_s:
            return Answer(200, {}, 0, 0.0)
        raise _Retry("it did not answer", unknown=True, silent=True)


@pytest.mark.parametrize(("limit_s", "answers_s", "attempts"), [(4.0, 1.3, 1), (4.0, 1.4, 2), (30.0, 7.5, 3)])
def test_nodes_that_are_all_slow_are_given_longer(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, answers_s: float, attempts: int
) -> None:
    """Else each attempt would be hung up on before its answer, however long the call may take."""

    async def scenario() -> None:
        calls = Slow([answers_s] * 3, limit_s, monkeypatch)
        await calls.call("POST", "/thing")
        assert calls.tried == list(range(attempts)) and calls.passed_s < limit_s

    run(scenario)


@pytest.mark.parametrize("limit_s", [2.0, 4.0, 5.0, 6.0, 10.0, 30.0])
def test_who_is_given_longer_leaves_time_for_the_last(monkeypatch: pytest.MonkeyPatch, limit_s: float) -> None:
    async def scenario() -> None:
        calls = Slow([math.inf, math.inf, 0.1], limit_s, monkeypatch)
        await calls.call("POST", "/thing")
        assert calls.tried == [0, 1, 2] and calls.passed_s < limit_s

    run(scenario)


def test_a_long_attempt_does_not_end_on_a_whole_second() -> None:
    """As aiohttp has it of those longer than five seconds, up to a second after the deadline."""
    waits, ends = 100.0, list[float]()

    class Noting(asyncio.SelectorEventLoop):
        def call_at(self, when: float, *called: Any, **more: Any) -> asyncio.TimerHandle:
            if abs(when - self.time() - waits) < SLACK_S:
                ends.append(when)
            return super().call_at(when, *called, **more)

    async def scenario() -> None:
        async with one(in_turn(ok({}))) as (_, client):
            await client.call("POST", "/thing", waits=waits)

    with asyncio.Runner(loop_factory=Noting) as runner:
        runner.run(scenario())
    assert ends and all(end % 1 for end in ends)


def test_no_attempt_begins_that_could_not_be_answered_any_more() -> None:
    """It might be done, and nobody would know. That it was not even sent is known, and told."""

    class Noted(Calls):
        def __init__(self) -> None:
            super().__init__("127.0.0.1:1", namespace="default", timeout=0.3)
            self.left: list[float] = []

        async def _attempt(self, request: object, endpoint: str, limit_s: float) -> Answer:
            self.left.append(limit_s)
            raise _Retry("not now", unknown=False)

    async def scenario() -> None:
        for _ in range(10):
            calls = Noted()
            with pytest.raises(Unavailable, match="it was not done: not now"):
                await calls.call("POST", "/thing")
            assert len(calls.left) > 2 and min(calls.left) > 0.3 * LAST_ATTEMPT_AT, calls.left
            await calls.close()

    run(scenario)


def test_a_connection_that_cannot_be_made_in_time_has_sent_nothing() -> None:
    """Of a host that is gone without a word, or whose queue of connections is full."""

    async def scenario() -> None:
        with socket.socket() as full, contextlib.ExitStack() as stack:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            async with Client("127.0.0.1:{1}".format(*full.getsockname()), timeout=0.6) as client:
                with pytest.raises(Unavailable, match="cannot be reached"):
                    await client.call("POST", "/thing")
                begun = clock.now()
                with pytest.raises(Unavailable, match="cannot be reached"):  # nor is it waited at
                    await client.lock("k", wait=600.0).acquire()
                assert clock.now() - begun < 0.6 + SLACK_S

    run(scenario)


def test_a_silent_node_leaves_time_for_the_others() -> None:
    async def scenario() -> None:
        async with scripted(silent) as mute, scripted(in_turn(ok({}))) as node:
            async with Client([mute.address, node.address]) as client:
                client.calls.move_on(f"http://{node.address}")
                await client.call("POST", "/thing", timeout=2 * SLACK_S)
            (unanswered,), (answered,) = mute.asked, node.asked
            assert unanswered.request_id == answered.request_id

    run(scenario)


def test_nobody_is_waited_at_who_was_never_reached() -> None:
    """A wait for a lock is long, also without a limit: that nobody is there is told in the time of any call."""

    async def scenario() -> None:
        async with scripted(silent) as gone:
            dead = gone.address
        async with Client(dead, timeout=0.5) as client:
            begun = clock.now()
            for wait in (None, 600.0):
                with pytest.raises(Unavailable, match="cannot be reached"):
                    await client.lock("k", wait=wait).acquire()
            assert clock.now() - begun < 2 * (0.5 + SLACK_S)

    run(scenario)


@pytest.mark.parametrize(
    ("said", "told"),
    [(b"", r"does it serve TLS \(https://\)\?"), (b"\x00\t\x91\xa7refused", "is it the node's http address")],
    ids=["hangs up, as a port of TLS", "answers in something else, as a port of peers"],
)
def test_nobody_is_waited_at_who_is_no_node(said: bytes, told: str) -> None:
    async def scenario() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(said)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            address = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
            async with Client(address, timeout=0.5) as client:
                begun = clock.now()
                with pytest.raises(OutcomeUnknown, match=told):
                    await client.lock("k").acquire()
                assert clock.now() - begun < 0.5 + SLACK_S

    run(scenario)


def test_who_was_reached_last_is_waited_at_as_long_as_it_takes() -> None:
    async def scenario() -> None:
        async def late(asked: Asked) -> web.Response | None:
            if asked.path == "/locks/acquire":
                answered = clock.now() + 1.0  # longer than a call has, and shorter than it waits
                await until(lambda: clock.now() >= answered, "the time of an answer")
            return ok({"ttl_ms": 10_000, "fencing_token": 1})

        async with scripted(silent) as gone:
            dead = gone.address
        async with scripted(late) as node, Client([dead, node.address], timeout=0.5) as client:
            client.calls.members.turn_to(f"http://{dead}")
            assert (await client.lock("k", 10.0, wait=20.0).acquire()).token == 1
            assert len(node.of("/locks/acquire")) == 1

    run(scenario)


# --- how nodes are named --------------------------------------------------------------------------------------------


def test_endpoints_are_taken_with_and_without_a_scheme() -> None:
    async def scenario() -> None:
        for given in ("127.0.0.1:7101", " http://127.0.0.1:7101/ ", ["127.0.0.1:7101"]):
            async with Client(given) as client:
                assert client.calls.endpoints == ["http://127.0.0.1:7101"]
        async with Client("[::1]:7101,b:1") as client:
            assert client.calls.endpoints == ["http://[::1]:7101", "http://b:1"]
        async with Client("node:7101", tls=client_context()) as client:
            assert client.calls.endpoints == ["https://node:7101"]
        for wrong in ("", [], "ftp://a:1", "http://", "a:b", "http://a:0"):
            with pytest.raises(Invalid):
                Client(wrong)

    run(scenario)
