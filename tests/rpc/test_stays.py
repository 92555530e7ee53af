"""A port that stays: whatever a stranger sends, and also when the library's server ends by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from bench.paced import Grpc
from cluster.quiet import QUIET_SECONDS
from coordinator.rpc.librarylog import LOGGER, Bounded
from coordinator.rpc.listening import PAUSE_MAX_S, PAUSE_S, Listening, _longer
from coordinator.rpc.server import RpcServer
from tests.ports import free_port
from tests.rpc.test_bounds import RENEW, answer_of, begun, run
from tests.security.doorway import view_of
from tests.service.lone import LoneHost
from tests.waiting import until

NOT_UTF8 = b"\xff"
ANSWER_S = 0.3
BACK_S = 30


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[RpcServer, str]]:
    server = RpcServer(view_of(LoneHost()), f"127.0.0.1:{free_port()}")
    await server.start()
    try:
        yield server, server.listen
    finally:
        await server.stop()


async def is_answered(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        with suppress(grpc.aio.AioRpcError):
            return not (await answer_of(begun(channel, RENEW))).success
    return False


async def send_bad_path(address: str) -> None:
    """Returns when the node has said all that it says to it; the connection is kept until then."""
    call = Grpc(RENEW.removeprefix("/"), b"")
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write((call.hello() + call.ask()).replace(b"Lease", NOT_UTF8 + b"ease"))
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            while await reader.read(1 << 10):
                pass
    writer.transport.abort()


def test_a_path_that_is_not_utf8_closes_nothing() -> None:
    async def scenario() -> None:
        async with listening() as (_, address):
            for _ in range(3):
                await send_bad_path(address)
                await until(lambda: is_answered(address), "a call after the bad path", BACK_S)

    run(scenario)


def test_a_server_that_ends_by_itself_is_followed_by_another(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with listening() as (server, address):
            for times in (1, 2):
                assert await is_answered(address)
                await server._listening._server.stop(None)
                assert not await is_answered(address)
                await until(lambda: is_answered(address), "a call to the next server", BACK_S)
                events = [getattr(record, "event", "") for record in caplog.records]
                assert events.count("grpc_ended") == events.count("grpc_listens_again") == times

    run(scenario)
    (first, _) = (record for record in caplog.records if getattr(record, "event", "") == "grpc_ended")
    assert first.levelno == logging.ERROR
    assert "cut off" in first.__dict__["fields"]["effect"]


class Breaking:
    """A server of the library as far as `Listening` knows it. The first ones break, the last one stays."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.stopped = asyncio.Event()

    async def start(self) -> None:
        if self.left == 1:
            raise RuntimeError("no thread can be had")

    async def stop(self, grace_s: float) -> None:
        self.stopped.set()

    async def wait_for_termination(self, timeout_s: float) -> bool:
        if self.left:
            raise UnicodeDecodeError("utf-8", NOT_UTF8, 0, 1, "invalid start byte")
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopped.wait(), timeout_s)
        return not self.stopped.is_set()


def test_whatever_breaks_it_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        made: list[Breaking] = []

        def make() -> Any:
            if len(made) == 1 and not caplog.messages.count("grpc_failed"):
                raise OSError("the address is taken")
            made.append(Breaking(3 - len(made)))
            return made[-1]

        port = Listening("127.0.0.1:1", make)
        await port.start()
        await until(lambda: len(made) == 4, "the one that stays", BACK_S)
        await port.stop()
        assert all(each.stopped.is_set() for each in made if each.left != 1)

    run(scenario)
    told = [(record.message, record.__dict__["fields"].get("reason", "")) for record in caplog.records]
    assert [kind for kind, _ in told if kind != "grpc_listens_again"] == [
        "grpc_ended", "grpc_failed", "grpc_ended", "grpc_failed",
    ]  # fmt: skip
    reasons = [reason for _, reason in told if reason]
    assert "UnicodeDecodeError" in reasons[0] and "taken" in reasons[1] and "no thread" in reasons[3]


def test_a_server_that_is_stopped_does_not_come_back(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with listening() as (_, address):
            assert await is_answered(address)
        assert not await is_answered(address)

    run(scenario)
    assert not [record for record in caplog.records if getattr(record, "event", "").startswith("grpc_")]


def test_pauses_grow_up_to_a_bound() -> None:
    pauses = [0.0]
    while len(pauses) < 10:
        pauses.append(_longer(pauses[-1]))
    assert pauses[1:4] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert pauses[-1] == PAUSE_MAX_S


def test_strangers_cannot_fill_the_log_with_what_the_library_says_of_them() -> None:
    now_s = 0.0
    bounded = Bounded(lambda: now_s)

    def told(path: str) -> str | None:
        try:
            raise ValueError("invalid start byte")
        except ValueError as error:
            trace = (type(error), error, error.__traceback__)
        record = logging.LogRecord(LOGGER, logging.ERROR, "", 0, "Unexpected error raised by [%s]", (path,), trace)
        return record.getMessage() if bounded.filter(record) and record.exc_info is None else None

    assert told("a") == "Unexpected error raised by [a]; ValueError('invalid start byte')"
    assert [told(f"b{number}") for number in range(50)] == [None] * 50
    now_s += QUIET_SECONDS
    assert (told("c") or "").endswith("50 more like it were not told")
