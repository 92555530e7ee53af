"""A batch of leases that is asked for again under its request id, when some of it or all has ended since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from coordinator.http.bodies import PACKED
from coordinator.machine import commands as c
from coordinator.service import ENDED_TOLD
from tests.http.graph import API, ask, scenario
from tests.http.scripted import Client
from tests.service.lone import LoneHost

NAMES = ("a", "b", "c")


def batch(*names: str, request_id: str | None = "id", **more: Any) -> dict[str, Any]:
    own = {} if request_id is None else {"request_id": request_id}
    return {"client_id": "me", "lease_duration_ms": 60_000, "resource_ids": names, **own, **more}


async def granted(client: Client, body: dict[str, Any]) -> list[str]:
    status, answer = await ask(client, "POST", "/leases/acquire-batch", body)
    assert (status, answer["success"]) == (200, True), answer
    lease_ids: list[str] = answer["lease_ids"]
    return lease_ids


async def refused(client: Client, body: dict[str, Any], packed: bool = False) -> dict[str, Any]:
    headers = {"Accept": PACKED} if packed else {}
    told = await client.post(f"{API}/leases/acquire-batch", json=body, headers=headers)
    answer = await told.json()
    assert (told.status, answer["success"], answer["error"]["code"]) == (403, False, "lease_expired"), answer
    assert answer["error"]["outcome"] == "denied"
    details: dict[str, Any] = answer["error"]["details"]
    return details


def release(host: LoneHost, names: Sequence[str]) -> None:
    host.run(*(c.ReleaseLease(name, "me") for name in names))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ended", [("b",), NAMES])
def test_what_ended_since_is_not_granted_again(ended: tuple[str, ...], packed: bool) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        lease_ids = await granted(client, batch(*NAMES))
        assert await granted(client, batch(*NAMES)) == lease_ids, "as long as it has them all"
        release(host, ended)
        details = await refused(client, batch(*NAMES), packed)
        assert details == {"granted": 3, "ended": len(ended), "resource_ids": list(ended)}
        anew = await granted(client, batch(*NAMES, request_id="new"))
        kept = [old for old, new in zip(lease_ids, anew, strict=True) if old == new]
        assert len(kept) == len(NAMES) - len(ended), "under a new id it has them all, and keeps what it had"
        told = await refused(client, batch(*NAMES))
        assert told["ended"] == len(ended), "newer leases on the same resources do not count"

    scenario(run)


def test_what_ended_by_time_or_with_its_session_is_not_granted_again() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        (session,) = host.run(c.CreateSession("me", 600_000))
        owned = batch("s", request_id="owned", session_id=f"{session.session_id:016x}")
        await granted(client, owned)
        await granted(client, batch(*NAMES))
        host.run(c.DeleteSession(session.session_id))
        assert (await refused(client, owned))["resource_ids"] == ["s"]
        host.now_ms += 59_999
        await granted(client, batch(*NAMES))
        host.now_ms += 1
        assert (await refused(client, batch(*NAMES)))["ended"] == 3

    scenario(run)


def test_a_resource_given_twice_is_told_once_and_of_very_many_some() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        await granted(client, batch("a", "b", "a"))
        release(host, ["a"])
        assert await refused(client, batch("a", "b", "a")) == {"granted": 2, "ended": 1, "resource_ids": ["a"]}
        many = [f"r{number}" for number in range(ENDED_TOLD + 5)]
        await granted(client, batch(*many, request_id="many"))
        release(host, many)
        details = await refused(client, batch(*many, request_id="many"))
        assert (details["ended"], details["resource_ids"]) == (len(many), many[:ENDED_TOLD])

    scenario(run)


def test_without_a_request_id_it_is_granted_as_often_as_asked_for() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        first = await granted(client, batch(*NAMES, request_id=None))
        release(host, NAMES)
        assert not set(first) & set(await granted(client, batch(*NAMES, request_id=None)))

    scenario(run)
