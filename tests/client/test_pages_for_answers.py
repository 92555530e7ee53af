"""The page of a proxy where the answer of the cluster may be a refusal: that a lock is taken, that nobody leads, that a
report comes too late, that a resource is unknown. A page says none of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from coordinator.client import (
    Client,
    Conflict,
    Denied,
    LockBusy,
    NotFound,
    OutcomeUnknown,
    SafetyValve,
    acquisitions,
    clock,
)  # fmt: skip
from coordinator.client.reports import Reports
from coordinator.client.tasks import Task
from coordinator.client.valve import Freed
from tests.client.running import run
from tests.client.scripted import Asked, ok, refused, scripted
from tests.client.test_foreign_pages import TASK, granted, page
from tests.waiting import until

TTL = 120.0
BODIES = {
    "html": "<html>Error 1001</html>",
    "nothing": "",
    "a list": "[]",
    "words": '{"error": "conflict"}',
    "a number": '{"error": {"code": 409, "message": "conflict"}}',
    "codes of its own": '{"error": {"code": "Conflict", "message": "conflict", "details": [{"reason": "none"}]}}',
    "no code": '{"error": {"outcome": "denied"}}',
}
LOCKS = ["client", "session"]


def conflict(body: str) -> web.Response:
    kind = "application/json" if body[:1] in ("{", "[") else "text/html"
    return web.Response(status=409, text=body, content_type=kind)


async def acquire(client: Client, of: str) -> object:
    if of == "client":
        return await client.lock("k", TTL, wait=0).acquire()
    return await (await client.open_session(TTL)).acquire_lock("k", wait=0)


# --- locks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", LOCKS)
@pytest.mark.parametrize("body", BODIES)
def test_a_page_does_not_say_that_a_lock_is_taken(body: str, of: str) -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return conflict(BODIES[body]) if asked.path == "/locks/acquire" else granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            with pytest.raises(Conflict) as told:
                await acquire(client, of)
            assert not isinstance(told.value, LockBusy) and not told.value.code

    run(scenario)


@pytest.mark.parametrize("of", LOCKS)
def test_only_the_cluster_says_that_a_lock_is_taken(of: str) -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return refused(409, "denied", "lock_held") if asked.path == "/locks/acquire" else granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            with pytest.raises(LockBusy):
                await acquire(client, of)

    run(scenario)


@pytest.mark.parametrize("of", LOCKS)
def test_a_page_after_a_try_that_was_not_heard_leaves_it_open(of: str) -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            if asked.path != "/locks/acquire":
                return granted(asked)
            return conflict(BODIES["html"]) if len(node.of(asked.path)) > 1 else None

        async with scripted(reply) as node, Client(node.address) as client:
            with pytest.raises(OutcomeUnknown):
                await acquire(client, of)
            assert len(client.acquisitions) == 1

    run(scenario)


@pytest.mark.parametrize("status", [404, 409])
def test_a_page_is_no_end_of_looking_for_what_the_client_itself_may_have(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own request tells what it was granted, also long after it was asked for."""
    monkeypatch.setattr(acquisitions, "IN_FLIGHT_S", 0.0)

    async def scenario() -> None:
        unheard, pages = True, [page(status)]

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path != "/locks/acquire":
                return granted(asked)
            if unheard:
                return refused(503, "unknown")
            return pages.pop() if pages else granted(asked)

        async with scripted(reply) as node, Client(node.address, timeout=1.0) as client:
            with pytest.raises(OutcomeUnknown):
                await client.lock("k", TTL, wait=0, reentrant=True).acquire()
            unheard = False
            await until(lambda: not len(client.acquisitions), "it to be settled")
            assert len({asked.request_id for asked in node.of("/locks/release")}) == 1

    run(scenario)


def test_an_error_of_a_proxy_with_details_of_its_own_is_told() -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return conflict(BODIES["codes of its own"])

        async with scripted(reply) as node, Client(node.address) as client:
            with pytest.raises(Conflict, match="conflict") as told:
                await client.call("POST", "/thing")
            assert (told.value.code, told.value.details) == ("", {})

    run(scenario)


def test_a_page_does_not_say_that_nobody_leads() -> None:
    async def scenario() -> None:
        said = page(404)

        async def reply(asked: Asked) -> web.Response | None:
            return said

        async with scripted(reply) as node, Client(node.address) as client:
            with pytest.raises(NotFound):
                await client.election("e").leader()
            said = refused(404, "denied", "unknown_lock")
            assert await client.election("e").leader() is None
            said = ok({"holder": "c#1", "fencing_token": 7, "holders": [{"client_id": "c#1", "fencing_token": 7}]})
            leader = await client.election("e").leader()
            assert leader is not None and leader.token == 7

    run(scenario)


# --- reports of tasks -------------------------------------------------------------------------------------------------


def held() -> Task:
    return Task(TASK | {"revoked_in_ms": TTL * 1000}, clock.now(), 0.0)


async def report(client: Client, task: Task, verb: str) -> None:
    reports = Reports(client, "w")
    await (reports.completed(task) if verb == "complete" else reports.failed(task, "why", None))


@pytest.mark.parametrize("verb", ["complete", "fail"])
@pytest.mark.parametrize("status", [400, 403, 404, 409, 410])
def test_a_report_that_was_answered_by_a_page_is_repeated(status: int, verb: str) -> None:
    async def scenario() -> None:
        pages = [page(status)]

        async def reply(asked: Asked) -> web.Response | None:
            return pages.pop() if pages else ok({"results": [{"verdict": "ok"}]})

        async with scripted(reply) as node, Client(node.address) as client:
            await report(client, held(), verb)
            first, again = node.of(f"/queues/q/{verb}")
            assert first.request_id == again.request_id

    run(scenario)


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_a_report_is_repeated_while_the_task_is_held_and_no_longer(verb: str) -> None:
    async def scenario() -> None:
        task = held()

        async def reply(asked: Asked) -> web.Response | None:
            if len(node.of(asked.path)) == 3:
                task.lost_because = "as the test says"
            return page(404)

        async with scripted(reply) as node, Client(node.address) as client:
            await report(client, task, verb)
            assert len(node.of(f"/queues/q/{verb}")) == 3

    run(scenario)


@pytest.mark.parametrize("verb", ["complete", "fail"])
@pytest.mark.parametrize(("status", "code"), [(404, "unknown_queue"), (400, "bad_request"), (403, "not_permitted")])
def test_a_report_that_the_cluster_refuses_is_not_repeated(status: int, code: str, verb: str) -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return refused(status, "denied", code)

        async with scripted(reply) as node, Client(node.address) as client:
            await report(client, held(), verb)
            assert len(node.of(f"/queues/q/{verb}")) == 1

    run(scenario)


# --- the safety valve -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 404, 409, 410])
def test_what_a_page_said_nothing_of_is_reported_again(status: int, tmp_path: Path) -> None:
    async def scenario() -> None:
        said = page(status)

        async def reply(asked: Asked) -> web.Response | None:
            return said

        valve = SafetyValve(tmp_path / "cache", 1, tmp_path / "journal")
        freed = {name: getattr(Freed("a", "r", 1, 0.0), name) for name in Freed.__slots__}
        valve._write([{"freed": freed}])
        async with scripted(reply) as node, Client(node.address) as client:
            with pytest.raises(Denied):
                await valve.report(client)
            assert len(valve.unreported()) == 1
            said = refused(404, "denied", "unknown_resource")
            assert [one.told for one in await valve.report(client)] == ["unknown"]
            assert not valve.unreported()

    run(scenario)
