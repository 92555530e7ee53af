"""Ctrl-C as something is acquired without a block, or by a recipe: wherever it comes, the cluster has it back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from coordinator.client.errors import NotFound
from coordinator.client.sessions import Session
from coordinator.client.sync import SyncClient
from coordinator.client.sync_leases import RELEASED_AT_ONCE, SyncLease, SyncSession, SyncSessionHeld
from coordinator.client.sync_lock import SyncHeld
from coordinator.client.sync_recipes import SyncElection, SyncSemaphore
from tests.client.cuts import Cut, Cutting, after_c_calls, at_answers, at_calls
from tests.waiting import wait_until

TTL = 300.0
"""Nothing of it runs out here: it is back because it was given back."""
ALONE = 10.0
"""Of leases that nothing keeps but their own renewals. One that was granted unheard is left alone, and runs out."""
PATIENCE_S = 90.0
SEVERAL = 2 * RELEASED_AT_ONCE + 1

Acquired = SyncLease | SyncSessionHeld | SyncSession | SyncHeld
Asking = Callable[[SyncClient, SyncSession, str], Acquired | list[SyncLease]]
prefixes = (f"cut-{number}-" for number in itertools.count())
"""Each may be used once."""


@pytest.fixture
def client(endpoints: list[str]) -> Iterator[SyncClient]:
    with SyncClient(endpoints) as made:
        yield made


def names(prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(SEVERAL)]


def ignore(*_: SyncLease) -> None:
    pass


def taken(client: SyncClient, prefix: str) -> int:
    """How much of it somebody has, and sessions besides the one of the test."""
    leases = client.call("GET", "/leases", query={"prefix": prefix})["leases"]
    sessions = [each for each in list(client._seen.keeper._kept) if isinstance(each, Session)]
    return len(leases) + held(client, prefix) + len(client._seen.leases) + len(sessions) - 1


def held(client: SyncClient, key: str) -> int:
    try:
        return len(client.call("GET", f"/locks/{key}")["holders"])
    except NotFound:  # nobody holds it or waits for it
        return 0


ASKING: dict[str, Asking] = {
    "lease": lambda client, _, prefix: client.acquire_lease(prefix, ttl=ALONE),
    "lease that tells": lambda client, _, prefix: client.acquire_lease(prefix, ttl=ALONE, on_lost=ignore),
    "leases": lambda client, _, prefix: client.acquire_leases(names(prefix), ttl=ALONE),
    "leases that tell": lambda client, _, prefix: client.acquire_leases(names(prefix), ttl=ALONE, on_lost=ignore),
    "session": lambda client, _, __: client.open_session(TTL),
    "lease of a session": lambda _, session, prefix: session.acquire_lease(prefix),
    "leases of a session": lambda _, session, prefix: session.acquire_leases(names(prefix)),
    "lock": lambda client, _, prefix: client.lock(prefix, TTL).acquire(),
    "lock that tells": lambda client, _, prefix: client.lock(prefix, TTL, on_lost=ignore).acquire(),
    "lock of a session": lambda _, session, prefix: session.acquire_lock(prefix),
}

RECIPES: dict[str, Callable[[SyncClient, str], SyncElection | SyncSemaphore]] = {
    "election": lambda client, name: client.election(name, ttl=TTL),
    "semaphore": lambda client, name: client.semaphore(name, 1, ttl=TTL),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("cutting", [at_calls, after_c_calls, at_answers])
@pytest.mark.parametrize("kind", ASKING)
def test_what_is_cut_as_it_comes_is_given_back(client: SyncClient, kind: str, cutting: Cutting) -> None:
    places: list[str] = []
    with client.session(TTL) as session:
        while place := cut_at(ASKING[kind], client, session, cutting(len(places))):
            places.append(place)
            assert len(places) < 100, f"no end of places: {places}"
    assert places


def cut_at(ask: Asking, client: SyncClient, session: SyncSession, cutting: AbstractContextManager[Cut]) -> str:
    """Empty when it went through: there was no such place any more."""
    prefix = next(prefixes)
    with cutting as cut:
        try:
            came = ask(client, session, prefix)
        except KeyboardInterrupt:
            wait_until(lambda: not taken(client, prefix), PATIENCE_S, f"it to be given back, cut in {cut.at}")
            return cut.at
    assert not cut.at, "it went on, although it was to end"
    assert taken(client, prefix)
    for each in came if isinstance(came, list) else [came]:
        assert each.state == "HELD"
        each.close() if isinstance(each, SyncSession) else each.release()
    assert not taken(client, prefix)
    return ""


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("cutting", [at_calls, after_c_calls, at_answers])
@pytest.mark.parametrize("end", ["enter", "leave"])
@pytest.mark.parametrize("kind", RECIPES)
def test_a_recipe_that_is_cut_as_it_is_entered_or_left_is_left(
    client: SyncClient, kind: str, end: str, cutting: Cutting
) -> None:
    places: list[str] = []
    while True:
        name = next(prefixes)
        recipe = RECIPES[kind](client, name)
        if end == "leave":
            recipe.__enter__()
        with cutting(len(places)) as cut:
            try:
                recipe.__enter__() if end == "enter" else recipe.__exit__(None, None, None)
            except KeyboardInterrupt:
                await_left(client, name, cut.at)
        if not cut.at:
            break
        places.append(cut.at)
    assert places
    if end == "enter":
        assert held(client, name)
        recipe.__exit__(None, None, None)
    assert not held(client, name)


def await_left(client: SyncClient, name: str, at: str) -> None:
    """And for the end of the block: the next one would pass other places while it is there."""
    wait_until(lambda: not client._thread.in_use and not held(client, name), PATIENCE_S, f"it to be left, cut in {at}")
