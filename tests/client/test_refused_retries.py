"""A refusal after a try that nobody answered: only one that the cluster remembers under the id ends that one too."""

from __future__ import annotations

from typing import get_args

import pytest
from aiohttp import web

from coordinator.client import Client, Conflict, NotHeld, OutcomeUnknown, TooMuch
from coordinator.client.errors import denied, is_remembered
from coordinator.http.errors import from_denial
from coordinator.machine.requests import ASK_AGAIN
from coordinator.machine.results import DenialCode, Denied
from tests.client.running import run
from tests.client.scripted import Asked, Reply, ok, refused, scripted
from tests.waiting import until

KEY, TOKEN = "k", 7
FORGOTTEN = (
    (429, "retry", "quota_exceeded"),
    (429, "retry", "capacity_exceeded"),
    (404, "denied", "unknown_namespace"),
    (401, "denied", "unauthenticated"),
    (403, "denied", "forbidden"),
    (400, "denied", "bad_request"),
    (404, "denied", ""),
)


def after_silence(status: int, outcome: str, code: str) -> Reply:
    """The first try is never answered; every later one is refused, and so is what is asked besides."""
    tries = list[Asked]()

    async def reply(asked: Asked) -> web.Response | None:
        if asked.method == "GET":
            return refused(404, "denied", "unknown_lock")
        tries.append(asked)
        return refused(status, outcome, code) if len(tries) > 1 else None

    return reply


@pytest.mark.parametrize(("status", "outcome", "code"), FORGOTTEN)
def test_what_is_not_remembered_says_nothing_of_an_earlier_try(status: int, outcome: str, code: str) -> None:
    async def scenario() -> None:
        async with scripted(after_silence(status, outcome, code)) as node, Client(node.address) as client:
            with pytest.raises(OutcomeUnknown, match="as the test says") as told:
                await client.lock(KEY, wait=0).acquire()
            first, second = node.of("/locks/acquire")
            assert told.value.request_id == first.request_id == second.request_id
            assert getattr(told.value.__cause__, "code", None) == code
            assert len(client.acquisitions) == 1

    run(scenario)


def test_what_is_remembered_ends_the_earlier_try_as_well() -> None:
    async def scenario() -> None:
        for status, code, kind in ((403, "not_holder", NotHeld), (409, "mode_mismatch", Conflict)):
            async with scripted(after_silence(status, "denied", code)) as node, Client(node.address) as client:
                with pytest.raises(kind):
                    await client.call("POST", "/thing")
                assert len(node.asked) == 2

    run(scenario)


def test_what_was_never_unknown_is_refused_plainly() -> None:
    async def scenario() -> None:
        async def reply(asked: Asked) -> web.Response | None:
            return refused(429, "retry", "quota_exceeded")

        async with scripted(reply) as node, Client(node.address) as client:
            with pytest.raises(TooMuch):
                await client.lock(KEY, wait=0).acquire()
            assert len(node.asked) == 1 and not len(client.acquisitions)

    run(scenario)


def test_asked_again_and_refused_for_want_of_room_it_stays_open() -> None:
    """The try that nobody answered may still be under way, though this call has had an answer to each of its own."""

    async def scenario() -> None:
        async with (
            scripted(after_silence(429, "retry", "quota_exceeded")) as node,
            Client(node.address) as client,
        ):
            with pytest.raises(OutcomeUnknown):
                await client.lock(KEY, wait=0).acquire()
            with pytest.raises(TooMuch):
                await client.lock(KEY, wait=0).acquire()
            assert len({asked.request_id for asked in node.of("/locks/acquire")}) == 1
            assert len(client.acquisitions) == 1

    run(scenario)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_late_grant_is_given_back(reentrant: bool) -> None:
    """Room becomes free, and the first try lands: once as a hold of its own, once as one of the client itself."""

    async def scenario() -> None:
        early = after_silence(429, "retry", "quota_exceeded")
        async with scripted(early) as node, Client(node.address) as client:
            with pytest.raises(OutcomeUnknown):
                await client.lock(KEY, wait=0, reentrant=reentrant).acquire()
            told = len(node.asked)
            holder = node.of("/locks/acquire")[0].body["client_id"]

            async def landed(asked: Asked) -> web.Response | None:
                if len(node.asked) <= told + 1:
                    return await early(asked)  # it was looked for, and there was still no room
                if asked.method == "GET":
                    return ok({"waiters": [], "holders": [{"client_id": holder, "fencing_token": TOKEN}]})
                return ok({"ttl_ms": 10_000, "fencing_token": TOKEN})

            node.reply = landed

            async def released() -> bool:
                return any(asked.body["fencing_token"] == TOKEN for asked in node.of("/locks/release"))

            await until(released, "what was granted late to be given back")

    run(scenario)


def test_the_client_knows_what_the_machine_remembers() -> None:
    for code in get_args(DenialCode):
        error = from_denial(Denied(code, "as the test says"))
        told = denied(error.status, error.body()["error"])
        assert is_remembered(told) is (code not in (*ASK_AGAIN, "unknown_namespace", "malformed")), code
