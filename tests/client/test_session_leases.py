"""Leases of a session that end without it, or without their owner's knowledge: who has them is told, and none is left
leased by nobody."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from aiohttp import web

from coordinator.client import Client, Lease, LeaseLost, TooMuch
from tests.client.links import links
from tests.client.running import run
from tests.client.scripted import Asked, ok, refused, scripted
from tests.waiting import until

TTL = 120.0
"""Nothing of it runs out here."""


def ended_in_part() -> web.Response:
    details = {"granted": 3, "ended": 1, "resource_ids": ["a"]}
    error = {"code": "lease_expired", "message": "use a new id", "outcome": "denied", "details": details}
    return web.json_response({"error": error}, status=409)


class Granting:
    """`batches`: what its acquisitions of many are answered in turn; by a grant past the last, and at None not at all.
    `ended`: the ids that it says are not active. `looking`: a look-up came, and waits for `may_look`."""

    def __init__(self, *batches: web.Response | None, ttl: float = TTL) -> None:
        self.batches, self.ttl = list(batches), ttl
        self.ids: list[str] = []
        self.given_back: list[str] = []
        self.ended = set[str]()
        self.looked: list[list[str]] = []
        self.looking, self.may_look = asyncio.Event(), asyncio.Event()
        self.may_look.set()
        self.silent = False
        self._count = 0

    async def __call__(self, asked: Asked) -> web.Response | None:
        match asked.path:
            case "/leases/acquire-batch":
                self.ids.append(asked.request_id)
                if self.batches:
                    return self.batches.pop(0)
                return self._told(lease_ids=[self._id() for _ in asked.body["resource_ids"]])
            case "/leases/acquire":
                return self._told(lease_id=self._id(), fencing_token=1, reference_count=1, reacquired=False)
            case "/leases/release":
                self.given_back.append(asked.body["resource_id"])
            case "/leases/lookup":
                return await self._look_up(asked.body["lease_ids"])
        return self._told(session_id="2")

    async def _look_up(self, ids: list[str]) -> web.Response:
        states = ["ENDED" if each in self.ended else "ACTIVE" for each in ids]
        self.looked.append(ids)
        self.looking.set()
        await self.may_look.wait()
        if self.silent:
            return refused(503, "retry")
        return self._told(leases=[{"state": state} for state in states])

    def _id(self) -> str:
        self._count += 1
        return f"{self._count:016x}"

    def _told(self, **more: Any) -> web.Response:
        return ok({"ttl_ms": self.ttl * 1000, **more})


# --- a batch that was granted unheard, and has ended in part ----------------------------------------------------------


@pytest.mark.parametrize("of_session", [False, True])
def test_a_batch_of_which_some_has_ended_is_asked_for_anew(of_session: bool) -> None:
    async def scenario() -> None:
        reply = Granting(None, ended_in_part())
        async with scripted(reply) as node, Client(node.address) as client:
            names = ["a", "b", "c"]
            if of_session:
                leases = await (await client.open_session(TTL)).acquire_leases(names)
            else:
                leases = await client.acquire_leases(names, ttl=TTL)
            assert [lease.state for lease in leases] == ["HELD"] * 3
            first, again, anew = reply.ids
            assert first == again != anew and not reply.given_back

    run(scenario)


def test_what_is_left_of_a_batch_that_is_refused_anew_is_given_back() -> None:
    async def scenario() -> None:
        reply = Granting(None, ended_in_part(), refused(429, "denied", "quota_exceeded"))
        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(TTL)
            mine = await session.acquire_lease("b")
            with pytest.raises(TooMuch):
                await session.acquire_leases(["a", "b", "c"])
            await until(lambda: not len(client.returns), "all to be given back")
            assert sorted(reply.given_back) == ["a", "c"] and mine.state == "HELD"

    run(scenario)


def test_what_is_left_of_a_cancelled_batch_is_given_back(endpoints: list[str]) -> None:
    """One of it is released before it is asked what was granted, by a task that had it before."""
    prefix = "session-leases/undone/"

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            (link,) = await stack.enter_async_context(links(1, endpoints))
            observer = await stack.enter_async_context(Client(endpoints))
            client = await stack.enter_async_context(Client(link.endpoints))

            async def leased() -> list[str]:
                leases = (await observer.call("GET", "/leases", query={"prefix": prefix}))["leases"]
                return [lease["resource_id"] for lease in leases]

            async def all_leased() -> bool:
                return len(await leased()) == 3

            async with client.session(TTL) as session:
                names = [f"{prefix}{name}" for name in "abc"]
                first = await session.acquire_lease(names[0])
                link.cut("deaf")
                asking = asyncio.ensure_future(session.acquire_leases(names))
                await until(all_leased, "the grant")
                ending = asyncio.ensure_future(first.release())
                await until(lambda: client.leases._turns.waiting(names[0]), "the release to wait for its turn")
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                link.mend()
                await ending
                await until(lambda: not len(client.returns), "all to be given back")
                assert await leased() == [] and len(client.leases) == 0

    run(scenario)


# --- one that was revoked ---------------------------------------------------------------------------------------------


def test_a_lease_of_a_session_that_was_revoked_is_lost(endpoints: list[str]) -> None:
    async def scenario() -> None:
        async with (
            Client(endpoints) as client,
            Client(endpoints) as administrator,
            client.session(3.0) as session,
        ):
            kept, revoked = await session.acquire_leases(["session-leases/kept", "session-leases/revoked"])
            told = list[Lease]()
            revoked.on_lost(told.append)
            body = {"resource_id": revoked.resource_id, "client_id": client.client_id}
            await administrator.call("POST", "/leases/release", body, query={"forced": "true"})
            assert "revoked" in await revoked.wait_lost()
            await until(lambda: told == [revoked], "the callback")
            assert (session.state, kept.state, revoked.state) == ("HELD", "HELD", "LOST")
            assert revoked.valid_for == 0 and len(client.leases) == 1

    run(scenario)


def test_all_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.client.sessions.MAX_LOOKUP", 2)

    async def scenario() -> None:
        reply = Granting(ttl=1.5)
        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(1.5)
            leases = await session.acquire_leases([f"r{number}" for number in range(5)])
            ids = {lease.lease_id for lease in leases}
            await until(lambda: len(reply.looked) >= 6, "two rounds")
            for rounds in (reply.looked[:3], reply.looked[3:6]):
                assert {each for looked in rounds for each in looked} == ids
                assert max(len(looked) for looked in rounds) == 2
            reply.ended = {lease.lease_id for lease in leases[::2]}
            await until(lambda: len(client.leases) == 2, "the loss of three")
            assert [lease.state for lease in leases] == ["LOST", "HELD", "LOST", "HELD", "LOST"]

    run(scenario)


def test_an_old_answer_takes_no_lease_that_was_acquired_since() -> None:
    async def scenario() -> None:
        reply = Granting(ttl=6.0)
        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(6.0)
            old = await session.acquire_lease("r")
            reply.ended.add(old.lease_id)
            reply.may_look.clear()
            await until(reply.looking.is_set, "a look")
            await old.release()
            reply._count = 0  # under the very same id
            new = await session.acquire_lease("r")
            assert new.lease_id == old.lease_id
            reply.ended.clear()
            reply.may_look.set()
            await until(lambda: len(reply.looked) >= 2, "another look")
            assert (old.state, new.state) == ("RELEASED", "HELD")

    run(scenario)


def test_a_look_that_nobody_answers_takes_no_lease() -> None:
    async def scenario() -> None:
        reply = Granting(ttl=1.5)
        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(1.5)
            lease = await session.acquire_lease("r")
            reply.silent, before = True, session.confirmed
            await until(reply.looking.is_set, "a look")
            await until(lambda: session.confirmed > before + 1.0, "more heartbeats")
            assert lease.state == session.state == "HELD"
            reply.silent, reply.ended = False, {lease.lease_id}
            await lease.wait_lost()
            with pytest.raises(LeaseLost, match="revoked"):
                lease.check()

    run(scenario)


# --- granted to a session that is over --------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_granted_to_a_session_that_ended_meanwhile_ends_with_it(lost: bool) -> None:
    async def scenario() -> None:
        came, may_go_on, granting = asyncio.Event(), asyncio.Event(), Granting()

        async def reply(asked: Asked) -> web.Response | None:
            if asked.path == "/leases/acquire":
                came.set()
                await may_go_on.wait()
            return await granting(asked)

        async with scripted(reply) as node, Client(node.address) as client:
            session = await client.open_session(TTL)
            asking = asyncio.ensure_future(session.acquire_lease("r"))
            await came.wait()
            if lost:
                session.lose("the cluster said so")
            else:
                await session.close()
            may_go_on.set()
            lease, told = await asking, list[Lease]()
            lease.on_lost(told.append)
            async with asyncio.timeout(30):
                why = await lease.wait_lost()
            assert why == ("the cluster said so" if lost else "it was released")
            assert lease.state == ("LOST" if lost else "RELEASED") and len(client.leases) == 0
            if lost:
                await until(lambda: told == [lease], "the callback")

    run(scenario)


def test_a_check_tells_why() -> None:
    async def scenario() -> None:
        async with scripted(Granting()) as node, Client(node.address) as client:
            session = await client.open_session(TTL)
            lost, over = await session.acquire_leases(["lost", "over"])
            lost.lose("as the test says")
            await over.release()
            for lease, why in ((lost, "LOST: as the test says"), (over, "RELEASED: it was released")):
                with pytest.raises(LeaseLost, match=why):
                    lease.check()

    run(scenario)
