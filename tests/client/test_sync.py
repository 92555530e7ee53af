"""The synchronous client on a real cluster: it keeps its lock while its user computes, and tells when it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.client import HoldfastError, LockBusy, LockLost
from coordinator.client.blocks import Block
from coordinator.client.heartbeat_thread import HeartbeatThread
from coordinator.client.lock import Lock
from coordinator.client.sync import SyncClient, SyncLock
from tests.cli.processes import REPOSITORY
from tests.client.gate import Gate
from tests.waiting import wait_until


@pytest.fixture
def client(endpoints: list[str]) -> Iterator[SyncClient]:
    with SyncClient(endpoints) as made:
        yield made


def burn(seconds: float, also: Callable[[], object] = lambda: None) -> int:
    """Pure Python without a pause: the interpreter lock is given up only when it is taken away."""
    rounds, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        rounds += sum(number * number for number in range(1000)) and 1
        also()
    return rounds


def test_a_worker_that_burns_cpu_for_five_ttls_keeps_its_lock(client: SyncClient, endpoints: list[str]) -> None:
    ttl = 2.0
    with SyncClient(endpoints) as other, client.lock("sync/burn", ttl=ttl) as held:
        rounds = burn(5 * ttl, held.check)
        assert held.state == "HELD" and held.valid_for > ttl / 3
        assert held.verify() is True
        with pytest.raises(LockBusy), other.lock("sync/burn", wait=0):
            pass
    print(f"{rounds} rounds in {5 * ttl:g} s under one lock of {ttl:g} s; the heartbeats' priority: {client.priority}")


def test_a_lock_is_released_by_its_block_and_its_token_grows(client: SyncClient) -> None:
    with client.lock("sync/one", ttl=5) as first:
        assert client.call("GET", "/locks/sync%2Fone")["holders"][0]["client_id"] == first.holder
    with client.lock("sync/one", ttl=5, wait=0) as second:
        assert second.token > first.token
    with pytest.raises(LockLost):
        first.check()
    assert first.valid_for == 0 and first.verify() is False
    with client.locks(["sync/b", "sync/a"], ttl=5) as both:
        assert set(both.tokens) == {"sync/a", "sync/b"}


def test_an_error_of_the_body_goes_through_and_gives_the_lock_back(client: SyncClient) -> None:
    with pytest.raises(ZeroDivisionError), client.lock("sync/error", ttl=5):
        _ = 1 / 0
    with client.lock("sync/error", ttl=5, wait=0):
        pass


# --- loss ---------------------------------------------------------------------------------------------------------


@contextmanager
def gated(endpoints: list[str], **options: Any) -> Iterator[tuple[SyncClient, Gate]]:
    with Gate([each.removeprefix("http://") for each in endpoints]) as gate, SyncClient(gate.endpoints, **options) as c:
        yield c, gate


def test_what_cannot_be_cancelled_is_told(endpoints: list[str]) -> None:
    """Cut off, the block is told at half of its ttl, and the lock is not given back while the block runs."""
    told = threading.Event()
    with gated(endpoints) as (client, gate):
        with pytest.raises(LockLost), client.lock("sync/cut", ttl=4.0, on_lost=told.set) as held:
            gate.cut()
            burn_until(told.is_set)
            assert 0 < held.valid_for < 2.5
            with pytest.raises(LockLost):
                held.check()
            gate.mend()
            with SyncClient(endpoints) as other, pytest.raises(LockBusy), other.lock("sync/cut", wait=0):
                pass
            assert held.valid_for > 0  # else the other's refusal showed nothing
        with SyncClient(endpoints) as other, other.lock("sync/cut", ttl=4.0, wait=0) as next_held:
            assert next_held.token > held.token  # given back when the block had ended


def burn_until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    burn_end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < burn_end:
        sum(range(1000))
    assert condition()


def test_an_interrupt_ends_a_block_that_only_computes(endpoints: list[str]) -> None:
    with gated(endpoints) as (client, gate):
        sure: list[float] = []
        with pytest.raises(LockLost) as lost, client.lock("sync/interrupt", ttl=3.0, interrupt=True) as held:
            gate.cut()
            try:
                burn(30)
            finally:
                sure.append(held.valid_for)
        assert "confirmed" in str(lost.value)
        assert sure[0] > 0
        gate.mend()
        burn(0.2)  # nothing arrives after the block


class Losing:
    """Stands in for a lock: ownership of it is in doubt half a millisecond after it was entered."""

    key, keys, token, tokens, holder = "k", ("k",), 1, {"k": 1}, "h"

    @property
    def valid_for(self) -> float:
        return max(0.0, self._until - time.monotonic())

    async def __aenter__(self) -> Losing:
        self._until = time.monotonic() + 0.5
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.0005, task.cancel)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is asyncio.CancelledError:
            raise LockLost("not confirmed")


def test_many_interrupts_never_arrive_after_their_block(client: SyncClient) -> None:
    """Blocks that end at about the moment they are interrupted: LockLost comes out of them, or nothing ever does."""
    ended = interrupted = 0
    for turn in range(500):
        lost = False
        try:
            with SyncLock(cast(Lock, Losing()), client._thread, client._seen, None, interrupt=True):
                burn(0.0002 * (turn % 50))
                ended += 1
        except LockLost:
            lost = True
        burn(0.001)
        interrupted += lost
    print(f"of 500 blocks {ended} came to their end, {interrupted} were told")
    assert 0 < ended < 500 and interrupted > 0
    wait_until(lambda: not client._thread.in_use, 90, "the end of blocks that were interrupted on their way out")


# --- the thread ---------------------------------------------------------------------------------------------------


def test_a_refused_priority_is_no_error() -> None:
    """As a user without any right: the thread runs as it is."""
    code = (
        "import os, asyncio, encodings.idna; from coordinator.client.sync import SyncClient\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "client = SyncClient('http://127.0.0.1:1', timeout=0.1); print(client.priority); client.close()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout.strip() in ("realtime", "raised", "normal"), ran.stderr
    assert os.getuid() != 0 or ran.stdout.strip() == "normal"


def test_a_client_is_not_closed_under_a_running_block(endpoints: list[str]) -> None:
    client = SyncClient(endpoints)
    with client.lock("sync/close", ttl=5) as held:
        with pytest.raises(HoldfastError, match="still running"):
            client.close()
        assert held.verify() is True
    client.close()
    with pytest.raises(HoldfastError, match="closed"):
        client.call("GET", "/cluster")


def test_every_running_block_counts_however_many_threads_enter_at_once() -> None:
    """One that was forgotten would not keep its client from being closed under it."""
    together, rounds = 8, 20
    thread, before = HeartbeatThread(priority=False), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(rounds):
            gate, entered = threading.Barrier(together), list[Block[None]]()

            def enter(gate: threading.Barrier = gate, entered: list[Block[None]] = entered) -> None:
                block = Block(contextlib.nullcontext())
                gate.wait()
                thread.enter(block)
                entered.append(block)

            threads = [threading.Thread(target=enter) for _ in range(together)]
            for each in threads:
                each.start()
            for each in threads:
                each.join(90)
            for block in entered:
                assert thread.in_use
                thread.run(block.leave())
            assert len(entered) == together and not thread.in_use
    finally:
        sys.setswitchinterval(before)
        thread.close()


def test_a_closed_client_may_be_closed_again(endpoints: list[str]) -> None:
    client = SyncClient(endpoints)
    client.close()
    with pytest.raises(HoldfastError, match="closed"), client.lock("sync/closed"):
        pass
    client.close()


def test_a_child_of_a_fork_is_told_to_make_its_own(client: SyncClient) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.call("GET", "/cluster")
        except HoldfastError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert "forked" in answer.read()
    os.waitpid(child, 0)


def test_ctrl_c_ends_a_wait_for_a_lock(endpoints: list[str], tmp_path: Path, client: SyncClient) -> None:
    code = (
        "import sys; from coordinator.client.sync import SyncClient\n"
        f"with SyncClient({endpoints!r}) as client:\n"
        "    print('waiting', flush=True)\n"
        "    with client.lock('sync/ctrl-c', ttl=5): print('granted', flush=True)"
    )
    with client.lock("sync/ctrl-c", ttl=10):
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        wait_until(lambda: client.call("GET", "/locks/sync%2Fctrl-c")["waiters"], 90, "the other in the queue")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=90)
    assert "KeyboardInterrupt" in err and "granted" not in out


def test_other_nouns_are_there_under_their_names_and_wait(client: SyncClient) -> None:
    begun = client.call("GET", "/cluster")["revision"]
    with client.lease("sync/leased", ttl=5.0) as lease:
        found = client.call("GET", "/leases", query={"prefix": "sync/leased"})["leases"]
        assert [each["client_id"] for each in found] == [client.client_id]
        assert lease.state == "HELD" and lease.valid_for > 0
    with client.session(ttl=5.0) as session:
        lease = session.acquire_lease("sync/of-session")
        assert lease.resource_id == "sync/of-session"
    for event in client.watch(prefix="sync/leased", from_revision=begun + 1):
        if event.kind == "lease_released":
            break
    assert client.call("GET", "/leases", query={"prefix": "sync/"})["leases"] == []


INTERRUPTED = """
import contextlib, sys
from coordinator.client.blocks import Block, Interrupted

block = Block(contextlib.nullcontext(), interrupt=True)
block.begun()
with contextlib.suppress(Interrupted):
    block._tell()
    while True:
        pass
block.ended()
sys.settrace(lambda *seen: None)
(lambda: None)()
print("went on")
"""


def test_an_interrupted_block_leaves_the_interpreter_as_it_was() -> None:
    """Else it looks for an exception at every call, and a debugger, or a measure of coverage, stands still."""
    told = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout == "went on\n", told
