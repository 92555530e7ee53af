"""Ctrl-C as something is released without a block: wherever it comes, the cluster has it back, and nobody renews it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from coordinator.client.sync import SyncClient
from coordinator.client.sync_leases import SyncSession
from tests.client.cuts import Cutting, after_c_calls, at_answers, at_calls
from tests.client.test_cut_acquisitions import held
from tests.waiting import wait_until

TTL = 300.0
"""Nothing of it runs out here: it is back because it was given back."""
PATIENCE_S = 90.0

Acquired = tuple[Callable[[], None], Callable[[], bool]]
"""What releases it, and whether the cluster still counts on it."""


def leased(client: SyncClient, name: str) -> bool:
    return bool(client.call("GET", "/leases", query={"prefix": name})["leases"])


def lock(client: SyncClient, session: SyncSession, name: str) -> Acquired:
    made = client.lock(name, TTL)
    made.acquire()
    return made.release, lambda: bool(held(client, name))


def hold(client: SyncClient, session: SyncSession, name: str) -> Acquired:
    return client.lock(name, TTL).acquire().release, lambda: bool(held(client, name))


def hold_of_a_session(client: SyncClient, session: SyncSession, name: str) -> Acquired:
    return session.acquire_lock(name).release, lambda: bool(held(client, name))


def lease(client: SyncClient, session: SyncSession, name: str) -> Acquired:
    return client.acquire_lease(name, ttl=TTL).release, lambda: leased(client, name)


def session_with_a_lease(client: SyncClient, session: SyncSession, name: str) -> Acquired:
    opened = client.open_session(TTL)
    opened.acquire_lease(name)
    return opened.close, lambda: leased(client, name)


@pytest.fixture
def client(endpoints: list[str]) -> Iterator[SyncClient]:
    with SyncClient(endpoints) as made:
        yield made


@pytest.mark.parametrize("cutting", [at_calls, after_c_calls, at_answers])
@pytest.mark.parametrize("kind", [lock, hold, hold_of_a_session, lease, session_with_a_lease])
def test_what_is_cut_as_it_is_released_is_given_back(
    client: SyncClient, kind: Callable[[SyncClient, SyncSession, str], Acquired], cutting: Cutting
) -> None:
    places: list[str] = []
    with client.session(TTL) as session:
        while True:
            name = f"cut-release-{kind.__name__}-{cutting.__name__}-{len(places)}"
            release, is_taken = kind(client, session, name)
            assert is_taken()
            with cutting(len(places)) as cut:
                try:
                    release()
                except KeyboardInterrupt:
                    wait_until(lambda: not is_taken(), PATIENCE_S, f"it to be given back, cut in {cut.at}")  # noqa: B023
            if not cut.at:
                break
            places.append(cut.at)
            assert len(places) < 100, f"no end of places: {places}"
        assert not is_taken()
    assert places
