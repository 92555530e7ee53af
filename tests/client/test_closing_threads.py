"""A client that is closed while threads wait for it: each hears of it, and Ctrl-C keeps no client from being closed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from coordinator.client import HoldfastError, SyncClient, sync
from coordinator.client.blocking import SyncBlock
from coordinator.client.heartbeat_thread import HeartbeatThread
from tests.waiting import wait_until

PATIENCE_S = 60.0


@pytest.fixture
def thread() -> Iterator[HeartbeatThread]:
    made = HeartbeatThread(priority=False)
    yield made
    made.close()


def hearing(work: Callable[[], object]) -> tuple[threading.Thread, list[str]]:
    """A thread that does it, and the code of what it raises: empty if it raises nothing."""
    told: list[str] = []

    def do() -> None:
        try:
            work()
        except HoldfastError as error:
            told.append(error.code)
        else:
            told.append("")

    doing = threading.Thread(target=do, daemon=True)
    doing.start()
    return doing, told


async def nothing() -> None:
    pass


@contextlib.contextmanager
def standing_still(thread: HeartbeatThread, monkeypatch: pytest.MonkeyPatch, handed_over: int) -> Iterator[None]:
    """The loop, until so much was handed over to it."""
    gate, still, real, handed = threading.Event(), threading.Event(), thread._loop.call_soon_threadsafe, list[object]()

    def stand() -> None:
        still.set()
        gate.wait(PATIENCE_S)

    def hand_over(work: Callable[..., object], *given: object) -> None:
        real(work, *given)
        handed.append(work)

    real(stand)
    assert still.wait(PATIENCE_S)
    monkeypatch.setattr(thread._loop, "call_soon_threadsafe", hand_over)
    yield
    wait_until(lambda: len(handed) >= handed_over, PATIENCE_S, "all to be handed over")
    gate.set()


@pytest.mark.parametrize("first", ["the call", "the end"])
def test_a_call_that_comes_with_the_end_of_the_loop_hears_of_it(
    thread: HeartbeatThread, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The loop begins it, and does nothing of it any more."""
    with standing_still(thread, monkeypatch, handed_over=2):
        call = hearing(lambda: thread.run(nothing())) if first == "the call" else None
        closing, _ = hearing(thread.close)
        calling, told = call or hearing(lambda: thread.run(nothing()))
    closing.join(PATIENCE_S)
    calling.join(PATIENCE_S)
    assert told in (["client_unusable"], [""])
    assert not closing.is_alive()


def test_calls_that_wait_when_the_loop_ends_hear_of_it(thread: HeartbeatThread) -> None:
    waiting = [hearing(lambda: thread.run(asyncio.Event().wait())) for _ in range(8)]
    wait_until(lambda: len(asyncio.all_tasks(thread._loop)) == len(waiting), PATIENCE_S, "all to wait")
    thread.close()
    for each, told in waiting:
        each.join(PATIENCE_S)
        assert told == ["client_unusable"]


def test_a_call_that_finds_the_loop_closed_says_so(thread: HeartbeatThread, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    with monkeypatch.context() as patched:
        patched.setattr(thread._loop, "call_soon_threadsafe", closed)
        with pytest.raises(HoldfastError) as told:
            thread.run(nothing())
    assert told.value.code == "client_unusable"


class Stubborn:
    """Cancelled as it is entered, it waits until it may end, or is cancelled once more."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.ended = False

    async def __aenter__(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await self.may_end.wait()
            finally:
                self.ended = True

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("it was not entered")


@pytest.fixture
def client() -> Iterator[SyncClient]:
    made = SyncClient("http://127.0.0.1:1", timeout=0.1)
    yield made
    made._thread.close()


def interrupted(client: SyncClient) -> Stubborn:
    stubborn = Stubborn()
    with pytest.raises(KeyboardInterrupt), SyncBlock(client._thread, stubborn, lambda _: None):
        raise AssertionError("it was entered")
    return stubborn


def test_a_block_that_was_given_up_is_waited_for(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "LEAVING_S", PATIENCE_S)
    stubborn = interrupted(client)
    closing, told = hearing(client.close)
    wait_until(lambda: told or client._thread._errands, PATIENCE_S, "it to be closed, or waited for")
    client._thread.call_soon(stubborn.may_end.set)
    closing.join(PATIENCE_S)
    assert told == [""] and stubborn.ended and client._thread._loop.is_closed()


def test_a_block_that_was_given_up_keeps_no_client_open(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "LEAVING_S", 0.01)
    stubborn = interrupted(client)
    client.close()
    assert stubborn.ended and client._thread._loop.is_closed()


def test_a_client_whose_closing_is_interrupted_is_closed(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(client._seen, "close", cut)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert client._thread._loop.is_closed()
