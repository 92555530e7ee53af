"""Bounds that a whole node reaches only with great effort, each on the part that has it."""

from __future__ import annotations

import asyncio
import socket
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from aiohttp import web

from coordinator.addresses import place_of
from coordinator.clientlimits import EARLY_REQUEST_BYTES, SEND_S, WATCHES, WATCHES_PER_NAMESPACE, ClientLimits
from coordinator.http.door import Door
from coordinator.http.early import EARLY, UNTAKEN, Early
from coordinator.http.entrance import BODIES, LIMITS, Bodies, entrance
from coordinator.http.errors import ApiError
from coordinator.http.server import HttpServer
from coordinator.http.watch import _refuse_more
from coordinator.http.whole import ANSWERS, Answers
from coordinator.machine.commands import AcquireLock, ReleaseLock
from coordinator.watches import Filter, Hub
from tests.cli.processes import REPOSITORY
from tests.http.served import ACQUIRE, HELD, post, run, served, waiting
from tests.http.wires import Caller
from tests.ports import free_port
from tests.waiting import until


def request_of(length: int | None, **headers: str) -> Any:
    return SimpleNamespace(content_length=length, headers=headers, app=SimpleNamespace(_client_max_size=60))


def test_all_bodies_together_are_bounded() -> None:
    bodies, first, second = Bodies(100, 90), request_of(50), request_of(None)
    bodies.reserve(first, "a")
    with pytest.raises(ApiError) as refused:
        bodies.reserve(second, "b")  # it may become the largest there is
    assert (refused.value.status, refused.value.outcome) == (429, "retry")
    bodies.settle(first, 40)
    bodies.reserve(second, "b")
    assert bodies.held == 100
    bodies.release(first)
    bodies.release(second)
    bodies.release(second)
    assert bodies.held == 0


def test_bodies_of_one_namespace_leave_room_for_others() -> None:
    bodies, slow, more, other = Bodies(100, 60), request_of(50), request_of(11), request_of(40)
    bodies.reserve(slow, "a")
    with pytest.raises(ApiError, match="your namespace"):
        bodies.reserve(more, "a")
    bodies.reserve(other, "b")
    bodies.release(slow)
    bodies.reserve(more, "a")
    assert bodies.held == 51


def test_a_compressed_body_counts_as_what_it_may_become() -> None:
    bodies = Bodies(100)
    bodies.reserve(request_of(1, **{"Content-Encoding": "gzip"}), "a")
    assert bodies.held == 60


def test_watches_are_bounded_for_the_node_and_for_a_namespace() -> None:
    hub = Hub(lambda after, most: [])
    kept = [hub.watch(Filter("a")) for _ in range(WATCHES_PER_NAMESPACE)]
    with pytest.raises(ApiError, match="namespace a"):
        _refuse_more(hub, "a")
    _refuse_more(hub, "b")
    kept += [hub.watch(Filter("b")) for _ in range(WATCHES - WATCHES_PER_NAMESPACE)]
    with pytest.raises(ApiError, match="this node"):
        _refuse_more(hub, "c")
    kept[0].close()
    _refuse_more(hub, "c")


def test_an_ipv6_network_is_one_place() -> None:
    assert place_of("2001:db8:0:1::1") == place_of("2001:db8:0:1:ffff::2") != place_of("2001:db8:0:2::1")
    assert place_of("::ffff:10.0.0.1") != place_of("::ffff:10.0.0.2")
    assert place_of("10.0.0.1") != place_of("10.0.0.2")
    assert place_of("fe80::1%eth0") == place_of("fe80::2")


def test_a_client_that_takes_nothing_of_its_answer_is_cut_off() -> None:
    asyncio.run(_cut_off())


async def _cut_off() -> None:
    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(32 << 20))

    app, port = web.Application(middlewares=[entrance]), free_port()
    app[BODIES], app[LIMITS] = Bodies(), ClientLimits()
    app.router.add_get("/", large)
    server = HttpServer(app, f"127.0.0.1:{port}")
    await server.start()
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    door = server._door
    assert isinstance(door, Door)
    await until(lambda: any(each._stuck_since for each in door._connections), "a client that is stuck")
    (stuck,) = door._connections
    stuck.look(asyncio.get_running_loop().time() + SEND_S - 1)
    assert stuck.transport is not None
    stuck.look(asyncio.get_running_loop().time() + SEND_S + 1)
    await until(lambda: not door._connections, "the end of the connection")
    assert (door._open, door._places) == (0, {})
    client.close()
    await server.stop()


@pytest.mark.parametrize("runs", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("whole", [True, False])
def test_answers_that_are_not_taken_are_bounded_for_all_connections_together(whole: bool, runs: Any) -> None:
    """Thousands of clients could ask for what is large, and for so long as each of them may take nothing."""

    async def scenario() -> None:
        asked: list[Any] = []

        async def large(request: Any) -> web.Response:
            asked.append(request)
            return web.Response(body=bytes(32 << 20))

        app, port, untaken = web.Application(middlewares=[entrance]), free_port(), Early(48 << 20)
        app[BODIES], app[LIMITS], app[UNTAKEN] = Bodies(), ClientLimits(), untaken
        app.router.add_get("/", large)
        if whole:
            app[ANSWERS] = Answers({("GET", "/"): large})
        server = HttpServer(app, f"127.0.0.1:{port}")
        await server.start()
        door, clients = server._door, []
        assert isinstance(door, Door)
        for number in range(1, 5):
            clients.append(socket.create_connection(("127.0.0.1", port)))
            clients[-1].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: len(asked) == number and untaken.held > 16 << 20, "an answer that is not taken")  # noqa: B023
            await until(lambda: len(door._connections) == 1, "no more than one of them")
            assert untaken.held <= 48 << 20
        for client in clients:
            client.close()
        await until(lambda: not untaken.held, "nothing that is not taken")
        await server.stop()

    runs(scenario())


_WAITING = b"POST /waiting HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
_EARLY = b"GET / HTTP/1.1\r\nX: " + b"x" * 4_000


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "pieces",
    [
        [_WAITING, _EARLY],
        [_WAITING + _EARLY],
        [_WAITING[:-1], b"}" + _EARLY],
        [_WAITING, _EARLY[:20], _EARLY[20:]],
    ],
)
def test_what_comes_before_its_turn_is_bounded_for_all_connections_together(whole: bool, pieces: list[bytes]) -> None:
    """Sent behind a request that waits, in whatever pieces: it is in memory, and no body counts it."""

    async def scenario() -> None:
        going_on = asyncio.Event()

        async def waiting(_: Any) -> web.Response:
            await going_on.wait()
            return web.Response()

        app, port, early = web.Application(middlewares=[entrance]), free_port(), Early(13_000)
        app[BODIES], app[LIMITS], app[EARLY] = Bodies(), ClientLimits(), early
        app.router.add_post("/waiting", waiting)
        if whole:
            app[ANSWERS] = Answers({("POST", "/waiting"): waiting})
        server = HttpServer(app, f"127.0.0.1:{port}")
        await server.start()
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for _, writer in clients:
            for piece in pieces:
                writer.write(piece)
                for _ in range(20):
                    await asyncio.sleep(0)  # so that it comes by itself; it also counts if it does not
        ended = await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in clients[3:])), 20)
        assert ended == [b"", b""]
        assert 12_000 < early.held < 13_000
        going_on.set()
        heads = [await asyncio.wait_for(reader.readuntil(b"\r\n"), 20) for reader, _ in clients[:3]]
        assert set(heads) == {b"HTTP/1.1 200 OK\r\n"}
        for _, writer in clients:
            writer.close()
        await until(lambda: not early.held, "nothing that came before its turn")
        await server.stop()

    asyncio.run(scenario())


class _Sender:
    def __init__(self, place: str = "a") -> None:
        self.place = place
        self.cut = False

    def cut_off(self) -> None:
        self.cut = True


def test_of_what_comes_before_its_turn_those_that_have_most_are_cut_off() -> None:
    """Not the one that sends the next piece of a request."""
    early, greedy, modest = Early(100), [_Sender(), _Sender()], [_Sender() for _ in range(30)]
    early.note(greedy[0], 40)
    early.note(greedy[1], 60)
    for each in modest:
        early.note(each, 2)
    assert [each.cut for each in greedy] == [False, True]
    early.note(modest[0], 60)
    assert modest[0].cut and not greedy[0].cut
    assert early.held == 40 + 29 * 2
    for each in (*greedy, *modest):
        early.note(each, 0)
    assert early.held == 0


def test_of_what_comes_before_its_turn_the_place_that_has_most_is_cut_off() -> None:
    """Not somebody else, who has more on one connection than that place on any of its many."""
    early, crowd, others = Early(100), [_Sender("crowd") for _ in range(40)], [_Sender("b"), _Sender("c")]
    for each in crowd:
        early.note(each, 2)
    early.note(others[0], 15)
    early.note(others[1], 15)
    assert [each.cut for each in (*crowd, *others)] == [False] * 35 + [True] * 5 + [False] * 2
    assert early.held == 100
    early.note(others[0], 71)
    assert others[0].cut and not others[1].cut
    assert [each.cut for each in crowd] == [False] * 35 + [True] * 5
    for each in (*crowd, *others):
        early.note(each, 0)
    assert (early.held, early._of, early._sums) == (0, {}, {})
    equals = [_Sender("d"), _Sender("e")]
    for each in equals:
        early.note(each, 50)
    early.note(others[1], 1)
    assert [each.cut for each in equals] == [False, True]


def test_connections_of_one_address_are_of_one_place() -> None:
    async def scenario() -> None:
        async with served() as found:
            dialled = [await found.dial() for _ in range(2)]
            await until(lambda: len(found.connections) == 2, "two connections")
            assert {each.place for each in found.connections} == {place_of("127.0.0.1")}
            for _, writer in dialled:
                writer.close()

    run(scenario)


def test_what_came_before_its_turn_counts_until_all_of_it_is_answered() -> None:
    """Small requests in front of one that waits do not make what is behind that one any smaller; each of those that
    wait there counts for more than its bytes."""

    async def scenario() -> None:
        async with served(whole=False) as found:
            caller, small = Caller(found), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
            early = caller.connection._app[EARLY]
            await found.say(post(ACQUIRE, HELD))
            large = post(ACQUIRE, b" " * 100_000)[:-1]
            caller.say(small * 10 + waiting() + large)
            await until(lambda: found.host.replica.machine.counts().waiters == 1, "one that waits")
            assert caller.wire.answered.count(b"HTTP/1.1 200") == 10
            assert early.held > len(large)
            other = Caller(found)
            other.say(waiting() + small * 5)
            await other.settle()
            assert early.held > len(large) + 5 * EARLY_REQUEST_BYTES
            for each in (caller, other):
                each.hang_up()
                await each.settle()
            assert early.held == 0

    run(scenario)


def test_the_body_of_a_request_that_is_not_due_yet_counts_as_it_comes() -> None:
    async def scenario() -> None:
        async with served(whole=False) as found:
            caller = Caller(found)
            early = caller.connection._app[EARLY]
            await found.say(post(ACQUIRE, HELD))
            for piece in (waiting(), post(ACQUIRE, b" " * 20_000)[:-20_000]):
                caller.say(piece)
                await caller.settle()
            before = early.held
            for _ in range(2):
                caller.say(b" " * 5_000)
                await caller.settle()
            assert early.held == before + 10_000
            caller.hang_up()
            await caller.settle()

    run(scenario)


@pytest.mark.parametrize("whole", [True, False])
def test_the_head_of_a_request_counts_until_it_is_complete_and_answered(whole: bool) -> None:
    async def scenario() -> None:
        async with served(whole=whole) as found:
            caller, head = Caller(found), b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 4_000
            early = caller.connection._app[EARLY]
            caller.say(head)
            assert early.held == len(head)
            caller.say(b"\r\n\r\n")
            await until(lambda: b"HTTP/1.1 200" in caller.wire.answered, "an answer")
            await caller.settle()
            assert early.held == 0
            caller.hang_up()
            await caller.settle()

    run(scenario)


@pytest.mark.parametrize("whole", [True, False])
def test_what_came_before_its_turn_counts_no_more_when_it_is_answered(whole: bool) -> None:
    """Its connection goes on."""

    async def scenario() -> None:
        async with served(whole=whole) as found:
            caller, small = Caller(found), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
            early = caller.connection._app[EARLY]
            (held,) = found.host.run(AcquireLock("k", "c", 60_000))
            caller.say(waiting())
            await until(lambda: found.host.replica.machine.counts().waiters == 1, "one that waits")
            for _ in range(5):
                caller.say(small)
            assert early.held == 5 * (len(small) + (0 if whole else EARLY_REQUEST_BYTES))
            found.host.run(ReleaseLock("k", "c", held.fencing_token))
            await until(lambda: caller.wire.answered.count(b"HTTP/1.1 200") == 6, "an answer to each")
            await caller.settle()
            assert (early.held, caller.wire.closed) == (0, False)
            caller.hang_up()
            await caller.settle()

    run(scenario)


def test_what_is_not_taken_counts_from_the_first_moment_until_it_is() -> None:
    async def scenario() -> None:
        async with served() as found:
            caller = Caller(found)
            connection, untaken = caller.connection, caller.connection._app[UNTAKEN]
            caller.wire.unsent = 100_000
            connection.pause_writing()
            assert untaken.held == 100_000
            caller.wire.unsent = 300_000  # of an answer that goes on
            connection.look(asyncio.get_running_loop().time())
            assert untaken.held == 300_000
            connection.resume_writing()
            assert untaken.held == 0
            caller.hang_up()
            await caller.settle()

    run(scenario)


def test_a_port_that_is_closed_before_anybody_was_let_in_is_free_again() -> None:
    async def scenario() -> None:
        address = f"127.0.0.1:{free_port()}"
        for server in [HttpServer(web.Application(), address) for _ in range(2)]:
            await server.start()
            await server.stop()

    asyncio.run(scenario())


def test_everything_that_is_installed_is_locked_with_hashes() -> None:
    lines = (REPOSITORY / "requirements.lock").read_text().replace("\\\n", "").splitlines()
    locked = {line.partition("==")[0].lower().replace("_", "-"): line for line in lines if "==" in line}
    assert all("--hash=sha256:" in line for line in locked.values())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    named = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    named += [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    for requirement in named:
        name = requirement.partition(";")[0]
        for mark in "[=<>~! ":
            name = name.partition(mark)[0]
        assert name.lower().replace("_", "-") in locked, f"{name} is not in requirements.lock: make lock"
    assert "--require-hashes" in (REPOSITORY / "Makefile").read_text()
