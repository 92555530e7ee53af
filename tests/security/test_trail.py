"""What is done by force: only administrators do it, and what comes to nothing does not fill the trail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cluster.ports import Denied
from coordinator.http.fields import hex_id
from coordinator.machine import commands as c
from coordinator.machine import taskcommands as t
from tests.http.graph import put
from tests.http.scripted import Client
from tests.security.doorway import API, Door, behind_the_door
from tests.service.lone import LoneHost, serving
from tests.service.test_dispatch import queue
from tests.service.test_waiting import turns

Forced = tuple[str, str, Any]
"""Method, path and body."""
NOBODYS = "00000001000000ff"


def release(resource_id: str = "b/r", client_id: str = "ann") -> Forced:
    return "POST", f"{API}/leases/release?forced=true", {"resource_id": resource_id, "client_id": client_id}


def ended(session_id: str) -> Forced:
    return "DELETE", f"{API}/sessions/{session_id}?forced=true", None


def removed(worker_id: str = "ann", name: str = "b/q") -> Forced:
    return "DELETE", f"{API}/queues/{name.replace('/', '%2F')}/workers/{worker_id}?forced=true", None


def settle(host: LoneHost) -> list[Forced]:
    """Has a client get one of everything that can be taken from it; how that is done."""
    _, session = host.run(c.AcquireLease("b/r", "ann", 60_000), c.CreateSession("ann", 60_000))
    queue(host, "b/q")
    host.run(t.BeatWorker("b/q", "ann", 0, 0, leaving=False))
    return [release(), ended(hex_id(session.session_id)), removed()]


def noted(host: LoneHost) -> list[tuple[str, str]]:
    """Of what was forced, oldest first."""
    found = [(each.action, each.subject) for each in host.replica.machine.actions(None, 99)]
    return [each for each in reversed(found) if each[0] in ("lease.revoke", "session.end", "worker.remove")]


@pytest.mark.parametrize("bound", [False, True])
def test_who_may_only_write_forces_nothing_and_leaves_no_note(bound: bool) -> None:
    async def scenario(door: Door) -> None:
        forced = [*settle(door.host), release("b/none"), ended(NOBODYS), removed("none")]
        writer = door.token(("default", "write", "b/"), identity="ann", bound=bound)
        before = door.host.replica.machine.digest()
        for each in forced:
            status, answer = await door.ask(writer, *each)
            assert (status, answer["error"]["code"]) == (403, "forbidden"), each
        assert door.host.replica.machine.digest() == before
        assert not noted(door.host)

    behind_the_door(scenario)


def test_what_a_writer_does_without_force_it_goes_on_doing() -> None:
    async def scenario(door: Door) -> None:
        writer = door.token(("default", "write", "b/"), identity="ann", bound=True)
        for method, path, body in settle(door.host):
            assert (await door.ask(writer, method, path.replace("true", "false"), body))[0] == 200, path
        assert not noted(door.host)

    behind_the_door(scenario)


def test_an_administrator_of_a_namespace_forces_what_is_there() -> None:
    async def scenario(door: Door) -> None:
        forced = settle(door.host)
        admin = door.token(("default", "admin"), identity="ops")
        for each in forced:
            assert (await door.ask(admin, *each))[0] == 200, each
        assert [name for name, _ in noted(door.host)] == ["lease.revoke", "session.end", "worker.remove"]
        for each in forced:
            assert (await door.ask(admin, *each))[0] == 404, each
        assert len(noted(door.host)) == 3, "what was over already is no news"

    behind_the_door(scenario)


def serves(run: Callable[[LoneHost, Client], Awaitable[None]]) -> None:
    async def scenario(door: Door) -> None:
        async with serving(door.host) as client:
            await run(door.host, client)

    behind_the_door(scenario)


def test_what_refers_to_nothing_leaves_no_note() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        settle(host)
        host.run(put("b/referred"), c.AcquireLease("b/referred", "bob", 60_000))
        for method, path, body in (
            release("b/none"), release("b/referred"), release("b/r", "bob"), ended(NOBODYS), removed("bob"),
            removed("ann", "b/none"),
        ):  # fmt: skip
            answer = await client.request(method, path, json=body)
            assert answer.status == 404, path
            elsewhere = await client.request(method, path, json=body, headers={"X-Holdfast-Namespace": "nowhere"})
            assert elsewhere.status == 404, path
        assert not noted(host)

    serves(run)


def test_of_a_resource_with_more_holders_than_are_looked_at_it_is_noted_in_any_case() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(c.AcquireLease("b/r", "ann", 60_000))
        host.run(*(c.AcquireLease("b/r", f"c{number}", 60_000) for number in range(200)))
        method, path, body = release()
        assert (await client.request(method, path, json=body)).status == 200
        assert noted(host) == [("lease.revoke", "default/b/r")]

    serves(run)


def test_repeated_under_its_request_id_it_is_noted_once() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        settle(host)
        method, path, body = release()
        for _ in range(3):
            assert (await client.request(method, path, json={**body, "request_id": "id"})).status == 200
        assert noted(host) == [("lease.revoke", "default/b/r")]

    serves(run)


def test_what_cannot_be_looked_at_is_not_done() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        forced = settle(host)

        async def leaderless(timeout: float) -> int | Denied:
            return Denied("no_leader", "no leader")

        host.read_index = leaderless  # type: ignore[method-assign]
        before = host.replica.machine.digest()
        for method, path, body in forced:
            assert (await client.request(method, path, json=body)).status == 503
        await turns()
        assert host.replica.machine.digest() == before

    serves(run)
