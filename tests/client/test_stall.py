"""The rule for pauses: one of T_valid - T_work or longer ends the transaction, also when the lock is held still."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from coordinator.client import Client, LockLost, Stalled, clock
from coordinator.client.stall import StallDetector, Watched
from tests.cli.processes import REPOSITORY
from tests.waiting import until, wait_until


@dataclass
class Hand:
    """A clock moved by hand, and a hold by that clock."""

    time: float = 100.0
    valid_until: float = 110.0
    key: str = "k"

    @property
    def valid_for(self) -> float:
        return max(0.0, self.valid_until - self.time)

    def check(self) -> None:
        if not self.valid_for:
            raise LockLost("gone")

    def renew(self) -> None:
        self.valid_until = self.time + 10


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    made = Hand()
    monkeypatch.setattr(clock, "now", lambda: made.time)
    return made


async def watched(hand: Hand, work: float) -> tuple[StallDetector, Watched]:
    detector, work_of = StallDetector(tick_s=3600), Watched(hand, work)
    detector.add(work_of)
    return detector, work_of


def test_a_pause_that_uses_up_what_was_to_spare_is_too_long_and_a_shorter_one_is_not(hand: Hand) -> None:
    async def scenario() -> None:
        detector, work = await watched(hand, 7.0)  # 3 s to spare
        hand.time += 2.9
        detector.tick()
        work.check()
        hand.time += 0.05
        detector.tick()
        hand.renew()
        detector.tick()
        hand.time += 3.0
        hand.renew()  # the heartbeat came first after the pause; that makes it no shorter
        detector.tick()
        with pytest.raises(Stalled) as stalled:
            work.check()
        assert stalled.value.details == pytest.approx({"pause_s": 3.0, "spare_s": 3.0, "work_s": 7.0})
        assert list(detector.pauses) == pytest.approx([2.9, 3.0])
        detector.close()

    asyncio.run(scenario())


def test_many_short_pauses_are_not_one_long_pause_while_the_lock_is_renewed(hand: Hand) -> None:
    async def scenario() -> None:
        detector, work = await watched(hand, 7.0)
        for _ in range(20):
            hand.time += 1.0
            hand.renew()
            detector.tick()
            work.check()
        hand.time += 11  # and no renewal
        detector.tick()
        with pytest.raises(Stalled):
            work.check()
        detector.close()

    asyncio.run(scenario())


def test_work_that_takes_longer_than_the_hold_is_not_begun(hand: Hand) -> None:
    with pytest.raises(LockLost, match="longer ttl"):
        Watched(hand, 10.5)


WORKER = """
import json, sys
from coordinator.client import Stalled, LockLost, SyncClient
with SyncClient({endpoints!r}) as client, client.lock({key!r}, ttl={ttl}) as held:
    told = {{}}
    try:
        with held.guard(work=held.valid_for - 1.0) as guard:
            print(json.dumps({{"token": held.token}}), flush=True)
            sys.stdin.readline()
            guard.check()
    except Stalled as stalled:
        told = stalled.details
    print(json.dumps({{**told, "state": held.state}}), flush=True)
"""


@pytest.mark.parametrize("pause_s", [0.5, 4.0])
def test_a_stopped_process_is_told_by_its_guard_that_it_stood_still(endpoints: list[str], pause_s: float) -> None:
    """Within its lease, so nobody else was granted the lock: discarded, verified, to be done again."""
    code = WORKER.format(endpoints=endpoints, key=f"stall/{pause_s}", ttl=8.0)
    worker = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdout is not None and worker.stdin is not None
        worker.stdout.readline()
        os.kill(worker.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: time.monotonic() - stopped >= pause_s, 90, "the length of the pause")
        worker.stdin.write("go on\n")
        worker.stdin.flush()
        os.kill(worker.pid, signal.SIGCONT)
        told = json.loads(worker.stdout.readline())
        took = time.monotonic() - stopped
    finally:
        worker.kill()
        worker.wait()
        worker.stdin.close()
        worker.stdout.close()
    if pause_s < 1:
        assert told == {"state": "HELD"} or took > 1.0, told
    else:
        assert pause_s * 0.95 <= told["pause_s"] <= took and told["spare_s"] < told["pause_s"], told
        assert told["current"] is True or took > 5.0, told


def test_an_event_loop_that_is_blocked_is_a_pause_too(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with Client(endpoints) as client, client.lock("stall/loop", ttl=6.0) as held:
            async with held.guard(work=1.0) as guard:
                guard.check()
                await until(lambda: client.stalls._watched, "the guard's ticks")
            with pytest.raises(Stalled) as stalled:
                async with held.guard(work=held.valid_for - 0.5):
                    begun = time.monotonic()
                    while time.monotonic() < begun + 1.0:  # nothing else gets its turn
                        sum(range(1000))
            assert stalled.value.details["pause_s"] > 0.9 and stalled.value.details["current"] is True

    asyncio.run(scenario())
