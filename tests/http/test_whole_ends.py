"""How requests that came whole end otherwise than by an answer, and what a connection keeps meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvloop

from coordinator.clientlimits import SEND_S
from coordinator.http import fullness
from coordinator.http.access import Gate
from coordinator.http.fullness import FULL_S
from coordinator.http.shedding import Shed
from coordinator.http.whole import ANSWERS, BODY_MOST, HEAD_KEPT_MOST, HEADS_KEPT
from coordinator.machine.accesscommands import CreateToken, Scope
from coordinator.machine.commands import AcquireLock
from coordinator.tokens import ROOT, digest_of, new_id, new_token
from tests.http.served import ACQUIRE, HELD, LIMIT_S, Served, parsed, post, run, served, waiting
from tests.http.wires import Caller
from tests.waiting import until

# --- by the client ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [asyncio.run, uvloop.run])
def test_a_client_that_hangs_up_leaves_the_queue(runs: Any) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), served() as found:
            await found.say(post(ACQUIRE, HELD))
            _, writer = await found.dial()
            writer.write(waiting())
            machine = found.host.replica.machine
            await until(lambda: machine.counts().waiters == 1, "one that waits")
            assert found.whole == 2
            writer.transport.abort()
            await until(lambda: machine.counts().waiters == 0, "nobody that waits")

    runs(scenario())


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("behind", [post(ACQUIRE, HELD) * 4_000, post(ACQUIRE, b" " * 600_000)[:-1]])
@pytest.mark.parametrize("runs", [asyncio.run, uvloop.run])
def test_a_client_that_hangs_up_leaves_the_queue_also_when_it_is_not_read_any_more(
    runs: Any, behind: bytes, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So much came behind its request that the end of it is not seen. Its place among the connections is free again."""
    monkeypatch.setattr(fullness, "FULL_S", 0.1)

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), served(whole=whole) as found:
            await found.ask(post(ACQUIRE, HELD))
            await until(lambda: not found.connections, "the end of the first")
            _, writer = await found.dial()
            writer.write(waiting())
            machine = found.host.replica.machine
            await until(lambda: machine.counts().waiters == 1, "one that waits")
            (connection,) = found.connections
            wire: Any = connection.transport
            writer.write(behind)
            await until(lambda: not wire.is_reading(), "a connection that is full")
            writer.transport.abort()
            await until(lambda: machine.counts().waiters == 0, "nobody that waits")
            await until(lambda: not found.connections, "no connection")

    runs(scenario())


@pytest.mark.parametrize("whole", [True, False])
def test_who_is_not_read_for_a_while_is_cut_off_only_behind_one_request(whole: bool) -> None:
    """Those who send many at once have them answered one after the other, however long all of them take; and a few
    wait behind one that waits, for as long as it does."""

    async def scenario() -> None:
        async with served(whole=whole) as found:
            found.host.run(AcquireLock("k", "c", 60_000))
            now = asyncio.get_running_loop().time()
            few, many = Caller(found), Caller(found)
            few.say(waiting() + post(ACQUIRE, HELD) * 20)
            found.host.gate = asyncio.Event()
            many.say(post(ACQUIRE, HELD) * 4_000)
            for _ in range(5):
                await few.settle()
                now += FULL_S - 1
                assert not many.wire.is_reading() and not many.connection.look(now)
                assert few.wire.is_reading() and not few.connection.look(now)
                answered = len(many.wire.answered)
                gate, found.host.gate = found.host.gate, asyncio.Event()
                gate.set()
                await until(lambda: len(many.wire.answered) > answered, "an answer")  # noqa: B023
            await many.settle()
            assert [many.connection.look(now + after) for after in (0, FULL_S, FULL_S + 1)] == [False, False, True]
            await many.settle()
            assert many.wire.aborted and not few.wire.closed
            few.hang_up()
            await few.settle()

    run(scenario)


def test_one_that_hangs_up_before_its_request_has_begun_is_not_served() -> None:
    async def scenario() -> None:
        async with served() as found:
            caller = Caller(found)
            caller.say(post(ACQUIRE, HELD))
            caller.connection.connection_lost(None)
            await caller.settle()
            assert (found.whole, found.host.proposed) == (0, [])

    run(scenario)


def test_nothing_is_taken_from_a_connection_that_is_closed() -> None:
    """Its client's certificate could not be asked for any more."""

    async def scenario() -> None:
        async with served() as found:
            caller = Caller(found)
            caller.connection.force_close()
            caller.connection.data_received(post(ACQUIRE, HELD))
            await caller.settle()
            assert (found.whole, found.host.proposed) == (0, [])

    run(scenario)


# --- by the node ------------------------------------------------------------------------------------------------------


def test_a_handler_that_is_cancelled_from_inside_ends_its_connection() -> None:
    """Nobody would ever answer, and what came behind would wait for ever."""

    async def scenario() -> None:
        async with served() as found:
            found.answer_with(_cancelled)
            caller = Caller(found)
            caller.say(post(ACQUIRE, HELD))
            await caller.settle()
            assert (caller.wire.closed, bytes(caller.wire.answered)) == (True, b"")

    run(scenario)


async def _cancelled(_: Any) -> Any:
    raise asyncio.CancelledError


def test_a_node_that_stops_waits_no_longer_than_it_may() -> None:
    async def scenario() -> None:
        async with served() as found:
            await found.say(post(ACQUIRE, HELD))
            caller, machine = Caller(found), found.host.replica.machine
            caller.wire.close = lambda: None  # type: ignore[method-assign] # its client takes nothing: it never closes
            caller.say(waiting())
            await until(lambda: machine.counts().waiters == 1, "one that waits")
            await caller.connection.shutdown(0.01)
            await until(lambda: machine.counts().waiters == 0, "nobody that waits")

    run(scenario)


def test_idle_connections_do_not_keep_a_node_from_stopping() -> None:
    async def scenario() -> None:
        async with served() as found:
            wires = [await found.dial() for _ in range(3)]
            for reader, writer in wires:
                writer.write(post(ACQUIRE, HELD))
                await reader.readuntil(b"}\n")
            wires[0][1].write(post(ACQUIRE, HELD)[:-1])  # and one of which the end is missing
            await until(lambda: any(each._behind for each in found.connections), "a piece of a request")
            async with asyncio.timeout(2):
                await found.server.stop()
                assert [await reader.read() for reader, _ in wires] == [b""] * 3
            for _, writer in wires:
                writer.close()

    run(scenario)


def test_a_refused_client_is_not_read_for_a_while_and_may_hang_up() -> None:
    async def scenario() -> None:
        async with served() as found:

            def refuse(*_: Any, **__: Any) -> None:
                raise Shed("overloaded", "slow down", 60.0, {})

            found.view.admission.admit = refuse  # type: ignore[method-assign]
            caller = Caller(found)
            caller.say(post(ACQUIRE, HELD))
            caller.say(post(ACQUIRE, HELD))
            await caller.settle()
            assert [status for status, _, _ in parsed(bytes(caller.wire.answered))] == [429]
            caller.hang_up()
            await caller.settle()
            assert caller.connection._answering is None

    run(scenario)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_what_comes_behind_a_request_is_bounded_and_read_on_afterwards() -> None:
    async def scenario() -> None:
        async with served() as found:
            found.host.gate = asyncio.Event()
            caller, said = Caller(found), post(ACQUIRE, {**HELD, "client_id": "c" * 200})
            count = 1
            caller.say(said)
            await caller.settle()
            while caller.say(said):
                count += 1
            assert BODY_MOST < len(caller.connection._behind) <= BODY_MOST + len(said)
            assert len(found.host.proposed) == 1
            found.host.gate.set()
            await until(lambda: bytes(caller.wire.answered).count(b"HTTP/1.1 200") == count, "all answers")
            assert caller.wire.is_reading()
            assert found.whole == count

    run(scenario)


def test_heads_that_are_kept_are_few_and_short() -> None:
    async def scenario() -> None:
        async with served() as found:
            caller = Caller(found)
            for number in range(3 * HEADS_KEPT):
                for padding in (1, HEAD_KEPT_MOST):
                    caller.say(post(ACQUIRE, HELD, f"X-Number: {number}", f"X-Padding: {'x' * padding}"))
                    await caller.settle()
            assert found.whole == 6 * HEADS_KEPT
            for kept in (caller.connection._heads, caller.connection._fields):
                assert 0 < len(kept) <= HEADS_KEPT
                assert max(map(len, kept)) <= HEAD_KEPT_MOST

    run(scenario)


def test_a_closed_connection_whose_client_does_not_take_the_rest_is_cut_off() -> None:
    async def scenario() -> None:
        async with served(idle_seconds=0.1) as found:
            reader, writer = await found.dial()
            writer.write(post(ACQUIRE, HELD))
            await reader.readuntil(b"}\n")
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            (connection,) = found.connections
            wire = connection.transport
            assert wire is not None
            wire.set_write_buffer_limits(1 << 30)  # as if it were less than what counts as stuck
            wire.write(bytes(32 << 20))
            await until(lambda: connection.transport is None, "an idle connection that is closed")
            assert found.connections == [connection]
            connection.look(asyncio.get_running_loop().time() + SEND_S + 1)
            await until(lambda: not found.connections, "its end")
            writer.close()

    run(scenario)


def test_requests_that_came_together_let_in_no_more_until_they_are_answered() -> None:
    """Or a client that never stops would have as much kept as all of them may, and copied for each of its requests."""

    async def scenario() -> None:
        async with served() as found:
            caller, said, most = Caller(found), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 4_000, 0
            for _ in range(200):
                caller.say(said)
                most = max(most, len(caller.connection._behind))
                await caller.settle(1)
            assert BODY_MOST < most <= BODY_MOST + len(said)
            await until(lambda: not caller.connection._behind, "an answer to each")
            assert caller.wire.is_reading()

    run(scenario)


# --- who asks ---------------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_and_named_in_the_trail() -> None:
    root = new_token(ROOT)
    token_id = new_id()
    token = new_token(token_id)
    wrong = new_token(token_id)

    def as_(*headers: str) -> bytes:
        return post("/api/v1/locks/break", {"lock_key": "k"}, *headers)

    async def asked(found: Served) -> list[Any]:
        scopes = (Scope("default", "admin"),)
        found.host.run(CreateToken(token_id, digest_of(token), "bob", scopes, bound=False))
        acquired = post(ACQUIRE, HELD, f"Authorization: Bearer {root}")
        said = [acquired, as_(), as_(f"Authorization: Bearer {wrong}"), as_("Authorization: Basic x")]
        said += [
            as_(f"authorization: bearer {token}"),
            as_(f"Authorization: Bearer {token}", "X-Holdfast-Namespace: b"),
        ]
        answers = [parsed(await found.ask(each))[0] for each in said]
        actions = found.host.replica.machine.actions(None, 10)
        return [
            *((status, sorted(headers), json.loads(body).get("error")) for status, headers, body in answers),
            [(each.action, each.identity, each.token_id, each.outcome) for each in actions],
        ]

    async def scenario() -> None:
        gate = Gate(digest_of(root))
        async with served(gate=gate) as ours, served(gate=gate, whole=False) as theirs:
            found = await asked(ours)
            assert found == await asked(theirs)
            assert (ours.whole, theirs.whole) == (6, 0)
            assert [status for status, *_ in found[:-1]] == [200, 401, 401, 401, 200, 403]
            assert ("bob", token_id) in [(identity, named) for _, identity, named, _ in found[-1]]

    run(scenario)


def test_answers_are_found_by_their_own_names() -> None:
    """Operations that stream are aiohttp's."""

    async def scenario() -> None:
        async with served() as found:
            door = found.server._door
            assert door is not None
            assert ("GET", "/metrics") in door._app[ANSWERS]
            assert ("POST", "/api/v1/sessions/{id}/heartbeat") in door._app[ANSWERS]
            assert not [path for _, path in door._app[ANSWERS] if path.endswith(("/watch", "/backup"))]

    run(scenario)
