"""A sync client whose user computes in C without giving up the interpreter lock: the heartbeats stand still meanwhile.

A short call costs nothing. One longer than half of the lease time costs the lock, and everybody who asks is told so:
`check`, the guard of a transaction, the block's end.
"""

from __future__ import annotations

import ctypes
import threading

import pytest

from coordinator.client import LockBusy, LockLost, Stalled, SyncClient, clock

TTL = 6.0


def compute_in_c(seconds: float) -> None:
    """Keeps the interpreter lock, as a C extension that computes does."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


def test_no_other_thread_runs_meanwhile() -> None:
    """Else the rest of this file would show nothing."""
    ran: list[float] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.01):
            ran.append(clock.now())

    thread = threading.Thread(target=run)
    thread.start()
    begun = clock.now()
    compute_in_c(0.5)
    ended = clock.now()
    stop.set()
    thread.join()
    assert not [moment for moment in ran if begun + 0.05 < moment < ended - 0.05]


def test_short_calls_in_a_row_cost_nothing(endpoints: list[str]) -> None:
    """Each step of a renewal, and it has several, waits for the end of one; a sixth of the ttl is there for all."""
    ttl = 2 * TTL
    with SyncClient(endpoints) as client, client.lock("gil/short", ttl=ttl) as held:
        token, begun = held.token, clock.now()
        while clock.now() - begun < ttl:
            compute_in_c(ttl / 120)
            held.check()
        assert held.verify() is True and held.token == token


def test_a_call_longer_than_half_of_the_lease_time_costs_the_lock_and_says_so(endpoints: list[str]) -> None:
    told = threading.Event()
    with SyncClient(endpoints) as client, SyncClient(endpoints) as other:
        with (
            pytest.raises(Stalled) as stalled,
            client.lock("gil/long", ttl=TTL, on_lost=told.set) as held,
            held.guard(work=held.valid_for - TTL / 4) as guard,
        ):
            compute_in_c(0.6 * TTL)
            with pytest.raises(LockLost):
                held.check()
            guard.check()
        assert stalled.value.details["pause_s"] >= 0.6 * TTL > stalled.value.details["spare_s"], stalled.value.details
        assert told.wait(90) and held.state == "LOST"
        with other.lock("gil/long", ttl=TTL, wait=2 * TTL) as next_held:
            assert next_held.token > held.token
            with pytest.raises(LockBusy), client.lock("gil/long", wait=0):
                pass


def test_a_block_without_a_guard_is_told_at_its_end(endpoints: list[str]) -> None:
    with SyncClient(endpoints) as client, pytest.raises(LockLost), client.lock("gil/end", ttl=TTL):
        compute_in_c(0.6 * TTL)
