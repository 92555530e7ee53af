"""What has come to its end by a node's clock is told as over only when the log says so: then every node says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from cluster.lanes import FRONT, Lane
from cluster.ports import Denied, Outcome
from coordinator.machine import commands as c
from tests.http.graph import ask, scenario
from tests.http.scripted import Client
from tests.service.lone import LoneHost

Looking = Callable[[Client], Awaitable[bool]]
"""Whether it is still told as active."""


async def _lock(client: Client, also: str = "") -> bool:
    status, body = await ask(client, "GET", f"/locks/k{also}")
    return status == 200 and body["holder"] is not None


async def _locks(client: Client) -> bool:
    _, body = await ask(client, "GET", "/locks")
    return any(lock["holder"] is not None for lock in body["locks"])


async def _current(client: Client) -> bool:
    _, body = await ask(client, "POST", "/fencing/check", {"lock_key": "k", "fencing_token": 1})
    return bool(body["current"])


async def _leases(client: Client) -> bool:
    _, body = await ask(client, "GET", "/leases")
    return bool(body["leases"])


async def _session(client: Client) -> bool:
    _, listed = await ask(client, "GET", "/sessions")
    _, body = await ask(client, "GET", f"/sessions/{listed['sessions'][0]['session_id']}")
    return bool(body["state"] == "ACTIVE")


def _timed(host: LoneHost) -> None:
    host.run(c.AcquireLock("k", "a", 1_000), c.AcquireLease("r", "a", 1_000), c.CreateSession("a", 1_000))


@pytest.mark.parametrize("active", [_lock, _locks, _current, _leases, _session])
def test_an_end_that_is_due_is_in_the_log_before_it_is_told(active: Looking) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        _timed(host)
        assert await active(client)
        written = host.applied
        host.now_ms += 2_000
        assert not await active(client)
        assert host.applied == written + 1 and host.replica.machine.now_ms == host.now_ms
        assert not await active(client) and host.applied == written + 1, "told once more, it is written no more"

    scenario(run)


@pytest.mark.parametrize("active", [_lock, _locks, _current, _leases, _session])
def test_while_nobody_takes_the_entry_it_is_told_as_it_stands(active: Looking) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        _timed(host)
        host.now_ms += 2_000
        host.outcomes += [Denied("no_leader", "m")] * 2
        assert await active(client)

    scenario(run)


def test_who_asks_for_less_has_nothing_written() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        _timed(host)
        written = host.applied
        host.now_ms += 2_000
        assert await _lock(client, "?consistency=local")
        assert host.applied == written

    scenario(run)


def test_writing_it_down_takes_no_more_than_what_is_left_of_the_time() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        _timed(host)
        host.now_ms += 2_000
        given: list[float] = []
        propose = host.propose

        async def noted(command: bytes, timeout: float, lane: Lane = FRONT, cost: int = 1) -> Outcome:
            given.append(timeout)
            return await propose(command, timeout, lane, cost)

        host.propose = noted  # type: ignore[method-assign]
        assert not await _lock(client, "?timeout_ms=2000")
        assert host.reads == 1 and len(given) == 1 and given[0] < 2.0, "it is not asked again how far to read"

    scenario(run)
