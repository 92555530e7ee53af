"""Handlers that raise what is no ordinary exception: their task fails, and the heartbeats go on. And what is told when
they do not."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coordinator.client import Client, HoldfastError, SyncClient, Task
from coordinator.client.blocking import SyncBlock
from coordinator.client.heartbeat_thread import HeartbeatThread
from tests.client.running import run
from tests.waiting import until, wait_until

PATIENCE_S = 60.0
RULES: dict[str, Any] = {"lease": 60.0, "heartbeat": 5.0, "back_off": 600.0}
HARD = [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, asyncio.CancelledError]


@pytest.fixture
def thread() -> Iterator[HeartbeatThread]:
    made = HeartbeatThread(priority=False)
    yield made
    made.close()


def raising(error: type[BaseException]) -> Callable[..., None]:
    def do(*_: object) -> None:
        raise error("hard")

    return do


def lasting(work: Callable[[], object]) -> list[BaseException | None]:
    """What it raises, in a thread of its own; a failure if it does not end."""
    ended: list[BaseException | None] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the answer
            ended.append(error)
        else:
            ended.append(None)

    threading.Thread(target=do, daemon=True).start()
    wait_until(lambda: ended, PATIENCE_S, "its end")
    return ended


@pytest.mark.parametrize("error", HARD)
def test_what_ends_a_thread_ends_no_heartbeats(thread: HeartbeatThread, error: type[BaseException]) -> None:
    (raised,) = lasting(lambda: thread.run(thread.aside(raising(error))))
    assert isinstance(raised, RuntimeError) and isinstance(raised.__cause__, error)
    assert thread.run(asyncio.sleep(0, "on")) == "on"


@pytest.mark.parametrize("error", HARD)
def test_a_blocking_handler_that_exits_fails_its_task(endpoints: list[str], error: type[BaseException]) -> None:
    queue = f"hard/blocking-{error.__name__}"
    with SyncClient(endpoints) as client, SyncClient(endpoints) as other:
        other.queues.put(queue, **RULES)
        task_id = other.queues.enqueue(queue, 1).task_id
        worker = client.worker(queue, raising(error))
        working = threading.Thread(target=worker.run, daemon=True)
        working.start()
        why = wait_until(lambda: other.queues.task(queue, task_id).last_error, PATIENCE_S, "the task to fail")
        assert error.__name__ in why
        worker.drain()
        working.join(PATIENCE_S)
        assert not working.is_alive()


@pytest.mark.parametrize("error", HARD)
def test_a_plain_handler_that_exits_fails_its_task(endpoints: list[str], error: type[BaseException]) -> None:
    queue = f"hard/plain-{error.__name__}"

    async def scenario() -> None:
        async with Client(endpoints) as client, Client(endpoints) as other:
            await other.queues.put(queue, **RULES)
            task_id = (await other.queues.enqueue(queue, 1)).task_id
            worker = client.worker(queue, raising(error))
            working = asyncio.create_task(worker.run())

            async def why() -> str | None:
                return (await other.queues.task(queue, task_id)).last_error

            await until(why, "the task to fail")
            assert error.__name__ in (await why() or "")
            worker.drain()
            await working

    run(scenario)


def test_an_exit_in_the_loop_does_not_end_it(thread: HeartbeatThread) -> None:
    thread.call_soon(sys.exit)
    assert lasting(lambda: thread.run(asyncio.sleep(0))) == [None]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_whoever_counts_on_a_loop_that_ends_unasked_is_told(thread: HeartbeatThread) -> None:
    told, begun = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def end() -> None:
        assert begun.wait(PATIENCE_S)
        thread.call_soon(thread._loop.stop)

    with contextlib.suppress(HoldfastError), SyncBlock(thread, contextlib.nullcontext(), lambda _: None, told.set):
        threading.Thread(target=end).start()
        (error,) = lasting(lambda: thread.run(wait()))
        assert isinstance(error, HoldfastError) and error.code == "client_unusable"
        assert told.wait(PATIENCE_S)
    with pytest.raises(HoldfastError, match="have ended"):
        thread.run(wait())
    assert not thread.in_use


def test_no_lock_made_in_python_is_taken_to_wait(thread: HeartbeatThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C can leave it taken, for ever: the loop would stand still at it."""
    me, real, taken = threading.get_ident(), threading.Condition.__enter__, list[threading.Condition]()

    def enter(condition: threading.Condition) -> bool:
        if threading.get_ident() == me:
            taken.append(condition)
        return real(condition)

    monkeypatch.setattr(threading.Condition, "__enter__", enter)
    assert thread.run(asyncio.sleep(0, "done")) == "done"
    assert not taken


def test_a_worker_that_is_interrupted_reports_what_is_done_first(endpoints: list[str]) -> None:
    queue = "hard/interrupted"
    with SyncClient(endpoints) as client, SyncClient(endpoints) as other:
        other.queues.put(queue, **RULES)
        other.queues.enqueue(queue, 1)
        worker = client.worker(grace=PATIENCE_S)

        @worker.handler(queue)
        def finish(task: Task) -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            wait_until(worker._seen._draining.is_set, PATIENCE_S, "the worker to be interrupted")

        with pytest.raises(KeyboardInterrupt):
            worker.run()
        assert other.queues.get(queue).completed == 1
