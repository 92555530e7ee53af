"""The page of a proxy in the place of an answer (404, 410, without a word of the cluster's): it says nothing of what is
held. Nothing is lost by it, nothing is taken for free, and what was to be given back is given back later."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from coordinator.client import Client, Gone, HoldfastError, NotFound, NotHeld, OutcomeUnknown, acquisitions, clock
from coordinator.client.errors import denied
from coordinator.client.keeper import Kept
from coordinator.client.reclaim import ReclaimItem
from tests.client.running import run
from tests.client.scripted import Asked, ok, refused, scripted
from tests.waiting import until

TTL = 3.0
PAGES = (404, 410)
ITEM = dict.fromkeys(ReclaimItem.__slots__, 1) | {"reclaim_id": "c", "resource_id": "r", "kind": "k"}
TASK = {
    "task_id": "t", "queue": "q", "payload": None, "token": 1, "attempt": 1, "heartbeat_ms": 1_000, "ttl_ms": 3_000,
    "revoked_in_ms": 6_000,
}  # fmt: skip


def page(status: int) -> web.Response:
    return web.Response(status=status, text="<html>nothing here</html>", content_type="text/html")


class Renewed(Kept):
    """Its renewal ends as the test says."""

    def __init__(self, refusal: HoldfastError) -> None:
        super().__init__(TTL, clock.now(), 0.0)
        self._refusal = refusal

    async def renew(self, limit_s: float) -> None:
        raise self._refusal


@pytest.mark.parametrize(
    ("refusal", "lost"),
    [
        (denied(404, {}), False),
        (denied(410, {}), False),
        (denied(404, {"code": "not_found"}), False),
        (denied(404, {"code": "unknown_session"}), True),
        (denied(403, {"code": "not_holder"}), True),
        (denied(404, {"code": "unknown_reclaim"}), True),
        (denied(410, {"code": "resource_reclaiming"}), True),
    ],
)
def test_only_what_the_cluster_says_ends_what_is_kept(refusal: HoldfastError, lost: bool) -> None:
    async def scenario() -> None:
        assert isinstance(refusal, NotHeld | NotFound | Gone)
        kept = Renewed(refusal)
        await kept.beat()
        assert (kept.state == "LOST") is lost
        assert str(refusal) in (kept.lost_because, kept.trouble)

    run(scenario)


def granted(asked: Asked) -> web.Response:
    given = {"fencing_token": 1, "reference_count": 1, "reacquired": False, "lease_id": "1", "session_id": "2"}
    return ok({"ttl_ms": TTL * 1000, "failed": [], **given})


@pytest.mark.parametrize("status", PAGES)
def test_a_page_in_the_place_of_a_heartbeat_loses_nothing(status: int) -> None:
    async def scenario() -> None:
        pages, told = {"/heartbeats": 2, "/sessions/2/heartbeat": 2}, list[str]()

        async def reply(asked: Asked) -> web.Response | None:
            if pages.get(asked.path):
                pages[asked.path] -= 1
                return page(status)
            return granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            lease, session = await client.acquire_lease("r", ttl=TTL), await client.open_session(TTL)
            lease.on_lost(lambda _: told.append("lease"))
            session.on_lost(lambda _: told.append("session"))
            await until(lambda: all(len(node.of(path)) > 2 for path in pages), "heartbeats after the pages")
            await until(lambda: lease.valid_for > TTL / 2 and session.valid_for > TTL / 2, "them to be confirmed")
            assert (lease.state, session.state, told) == ("HELD", "HELD", [])
            await lease.release()
            await session.close()

    run(scenario)


def test_when_pages_are_all_there_is_it_is_held_for_its_time() -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return page(404) if "heartbeat" in asked.path else granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            begun = clock.now()
            session = await client.open_session(TTL)
            why = await session.wait_lost()
            assert "HTTP 404" in why and clock.now() - begun > 0.9 * TTL

    run(scenario)


def test_a_page_does_not_stop_a_clean_up() -> None:
    async def scenario() -> None:
        renewed, pages = asyncio.Event(), [page(404)]
        items = [ITEM]

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/reclaims/claim":
                if not items:
                    await asyncio.Event().wait()
                return ok({"items": [items.pop()], "claim_left_ms": TTL * 1000})
            if asked.path == "/reclaims/renew":
                if pages:
                    return pages.pop()
                renewed.set()
            return ok({})

        async with scripted(reply) as node, Client(node.address, timeout=1.0) as client:

            async def clean(_: ReclaimItem) -> None:
                await renewed.wait()

            working = asyncio.ensure_future(client.reclaim_worker("p", clean, claim=TTL, grace=0.1))
            await until(lambda: node.of("/reclaims/ack"), "the clean-up to be reported as done")
            working.cancel()
            await asyncio.wait({working})

    run(scenario)


# --- who looks, and who gives back ------------------------------------------------------------------------------------


def test_a_page_does_not_say_that_a_lock_is_free() -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return page(404)

        async with scripted(reply) as node, Client(node.address) as client:
            with pytest.raises(NotFound):
                await client.lock("k").locked()

            async def free(asked: Asked) -> web.Response | None:
                return refused(404, "denied", "unknown_lock")

            node.reply = free
            assert not await client.lock("k").locked()

    run(scenario)


@pytest.mark.parametrize("of_session", [False, True])
def test_a_release_that_was_answered_by_a_page_is_done_later(of_session: bool) -> None:
    async def scenario() -> None:
        pages = [page(404)]

        async def reply(asked: Asked) -> web.Response | None:
            return pages.pop() if pages and asked.path == "/locks/release" else granted(asked)

        async with scripted(reply) as node, Client(node.address) as client, client.session(TTL) as session:
            held = await (session.acquire_lock("k") if of_session else client.lock("k", TTL).acquire())
            with pytest.raises(NotFound):
                await held.release()
            await until(lambda: not len(client.returns), "it to be given back")
            first, again = node.of("/locks/release")
            assert first.request_id == again.request_id

    run(scenario)


@pytest.mark.parametrize("instead_of", ["GET", "POST"])
def test_a_page_is_not_the_end_of_looking_for_what_was_granted_unheard(
    instead_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long after it was asked for, when what is not there will not come any more."""
    monkeypatch.setattr(acquisitions, "IN_FLIGHT_S", 0.0)

    async def scenario() -> None:
        pages = [page(404)]

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/locks/acquire":
                return refused(503, "unknown")
            if pages and asked.method == instead_of:
                return pages.pop()
            if asked.method == "GET":
                holder = node.of("/locks/acquire")[0].body["client_id"]
                return ok({"holders": [{"client_id": holder, "fencing_token": 1}], "waiters": []})
            return ok({})

        async with scripted(reply) as node, Client(node.address, timeout=0.3) as client:
            with pytest.raises(OutcomeUnknown):
                await client.lock("k", wait=0).acquire()
            await until(lambda: not len(client.acquisitions), "it to be settled")
            releases = node.of("/locks/release")
            assert len(releases) == (1 if instead_of == "GET" else 2)
            assert len({asked.request_id for asked in releases}) == 1

    run(scenario)


@pytest.mark.parametrize("of", ["clean-ups", "tasks"])
def test_what_a_page_said_nothing_of_is_asked_for_again_and_returned(of: str) -> None:
    """The page ends the worker. An earlier try of what it asked for may have been granted, and nobody would do it."""

    async def scenario() -> None:
        pages = [page(404)]

        async def reply(asked: Asked) -> web.Response | None:
            if not asked.path.endswith(("/claim", "/acquire")):
                return ok({"results": [{"verdict": "ok"}]})
            if pages:
                return pages.pop()
            return ok({"items": [ITEM], "claim_left_ms": TTL * 1000, "tasks": [TASK]})

        async with scripted(reply) as node, Client(node.address) as client:
            working = (
                client.reclaim_worker("p", untouched) if of == "clean-ups" else client.worker("q", untouched).run()
            )
            with pytest.raises(NotFound):
                await working
            first, again, returned = (asked for asked in node.asked if asked.method == "POST")
            assert first.request_id == again.request_id and returned.path.endswith("/return")

    run(scenario)


async def untouched(_: object) -> None:
    raise AssertionError("it was begun")


@pytest.mark.parametrize("status", PAGES)
def test_a_page_is_no_release_of_a_lease(status: int) -> None:
    async def scenario() -> None:
        pages = [page(status)]

        async def reply(asked: Asked) -> web.Response | None:
            return pages.pop() if asked.path == "/leases/release" and pages else granted(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            lease = await client.acquire_lease("r", ttl=TTL)
            with pytest.raises((NotFound, Gone)):
                await lease.release()
            await until(lambda: len(node.of("/leases/release")) > 1, "it to be given back")
            assert len({asked.request_id for asked in node.of("/leases/release")}) == 1

    run(scenario)


def test_a_page_in_the_place_of_a_renewal_loses_no_task() -> None:
    """It is done, and completed."""

    async def scenario() -> None:
        pages, tasks = [page(404)], [TASK | {"heartbeat_ms": 50}]

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path.endswith("/renew"):
                kept = {"verdict": "ok", "ttl_ms": TTL * 1000, "revoked_in_ms": 6_000}
                return pages.pop() if pages else ok({"results": [kept], **kept})
            if asked.path.endswith("/acquire"):
                return ok({"tasks": [tasks.pop()] if tasks else []})
            return ok({"results": [{"verdict": "ok"}]})

        async with scripted(reply) as node, Client(node.address) as client:
            worker = client.worker("q", lambda _: until(lambda: len(node.of("/queues/q/renew")) > 1, "renewals"))
            working = asyncio.ensure_future(worker.run())
            await until(lambda: bool(node.of("/queues/q/complete")), "it to be completed")
            worker.drain()
            await working

    run(scenario)
