"""Clean-ups in front of a lone machine: claims that wait, every answer of a worker, dead letters."""

from __future__ import annotations

import asyncio

import pytest

from coordinator import claims, service
from coordinator.machine import commands as c
from coordinator.machine.limits import LANE_FAILURES, MAX_ATTEMPTS
from tests.http.graph import CLAIM, ask, code, garbage, scenario
from tests.http.scripted import Client
from tests.service.lone import LoneHost
from tests.waiting import until


def test_claim_and_every_answer_of_a_worker() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        garbage(host, "a", "b", "c")
        status, claimed = await ask(client, "POST", "/reclaims/claim", {**CLAIM, "max": 2})
        assert (status, claimed["claim_left_ms"], claimed["left"]) == (200, 5_000, 1)
        a, b = claimed["items"]
        assert set(a) == {"reclaim_id", "resource_id", "kind", "token", "attempt", "age_ms"}
        assert (a["resource_id"], a["kind"], a["attempt"]) == ("a", "segment", 1)
        said = {"worker_id": "w", "reclaim_id": a["reclaim_id"], "token": a["token"]}
        assert await code(client, "POST", "/reclaims/ack", {**said, "worker_id": "v"}) == (403, "not_holder")
        assert await code(client, "POST", "/reclaims/ack", {**said, "token": 999}) == (403, "not_holder")
        assert await code(client, "POST", "/reclaims/ack", {**said, "reclaim_id": "f" * 16}) == (404, "unknown_reclaim")
        assert (await ask(client, "POST", "/reclaims/renew", {**said, "claim_ms": 60_000}))[1]["renewed"] is True
        seen = (await ask(client, "GET", "/reclaims?state=claimed"))[1]["items"]
        assert {each["resource_id"]: each["claim_left_ms"] for each in seen} == {"a": 60_000, "b": 5_000}
        done = {"reclaim_id": a["reclaim_id"], "acked": True}
        assert await ask(client, "POST", "/reclaims/ack", said) == (200, {**done, "already_done": False})
        assert await ask(client, "POST", "/reclaims/ack", said) == (200, {**done, "already_done": True})
        assert await code(client, "POST", "/reclaims/renew", said) == (404, "unknown_reclaim")
        assert await code(client, "POST", "/reclaims/nack", said) == (404, "unknown_reclaim")
        items = [{"reclaim_id": each["reclaim_id"], "token": each["token"]} for each in (a, b)]
        items.append({"reclaim_id": "f" * 16, "token": 1})
        _, many = await ask(client, "POST", "/reclaims/ack", {"worker_id": "w", "items": items})
        assert (many["acked"], [each["verdict"] for each in many["results"]]) == (2, ["already_done", "ok", "unknown"])

    scenario(run)


def test_what_is_given_back_is_another_workers_at_once() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        garbage(host, "a", "b", "c")
        items = (await ask(client, "POST", "/reclaims/claim", CLAIM))[1]["items"]
        a, *others = [{"reclaim_id": item["reclaim_id"], "token": item["token"]} for item in items]
        said = {"worker_id": "w", **a}
        assert await code(client, "POST", "/reclaims/return", {**said, "worker_id": "v"}) == (403, "not_holder")
        assert await code(client, "POST", "/reclaims/return", {**said, "reclaim_id": "f" * 16}) == (
            404, "unknown_reclaim",
        )  # fmt: skip
        returned = {"reclaim_id": a["reclaim_id"], "returned": True}
        assert await ask(client, "POST", "/reclaims/return", said) == (200, returned)
        assert await code(client, "POST", "/reclaims/return", said) == (403, "not_holder")
        _, many = await ask(client, "POST", "/reclaims/return", {"worker_id": "w", "items": [a, *others]})
        assert (many["returned"], [each["verdict"] for each in many["results"]]) == (2, ["not_holder", "ok", "ok"])
        second = (await ask(client, "POST", "/reclaims/claim", {**CLAIM, "worker_id": "v"}))[1]["items"]
        assert [(item["resource_id"], item["attempt"]) for item in second] == [("a", 1), ("b", 1), ("c", 1)]

    scenario(run)


def test_a_worker_that_hangs_up_leaves_nothing_claimed() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        garbage(host, "a", "b")
        host.gate = asyncio.Event()
        call = asyncio.ensure_future(ask(client, "POST", "/reclaims/claim", {**CLAIM, "claim_ms": 86_400_000}))
        await until(lambda: len(host.proposed) == 1, "the claim is on its way")
        call.cancel()
        await until(call.done, "the worker is gone")
        await until(lambda: not host.replica.hub.claiming, "the node has noticed")
        host.gate.set()
        await until(lambda: len(host.proposed) == 2, "what it got is given back")
        _, claimed = await ask(client, "POST", "/reclaims/claim", {**CLAIM, "worker_id": "v"})
        assert [(item["resource_id"], item["attempt"]) for item in claimed["items"]] == [("a", 1), ("b", 1)]

    scenario(run)


def test_a_claim_that_ran_out_is_another_workers() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        garbage(host, "a")
        item = (await ask(client, "POST", "/reclaims/claim", CLAIM))[1]["items"][0]
        said = {"worker_id": "w", "reclaim_id": item["reclaim_id"], "token": item["token"]}
        host.now_ms += 6_000
        host.run()
        second = (await ask(client, "POST", "/reclaims/claim", {**CLAIM, "worker_id": "v"}))[1]["items"][0]
        assert (second["reclaim_id"], second["attempt"]) == (item["reclaim_id"], 2)
        for path in ("ack", "nack", "renew"):
            assert await code(client, "POST", f"/reclaims/{path}", said) == (403, "not_holder")

    scenario(run)


def test_failures_dead_letters_and_lanes() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        garbage(host, "bad")
        garbage(host, "good", kind="fine")
        for attempt in range(1, MAX_ATTEMPTS + 1):
            _, claimed = await ask(client, "POST", "/reclaims/claim", {**CLAIM, "kinds": ["segment"]})
            item = claimed["items"][0]
            body = {"worker_id": "w", "reclaim_id": item["reclaim_id"], "token": item["token"], "reason": "disk\nfull"}
            _, told = await ask(client, "POST", "/reclaims/nack", body)
            assert (told["nacked"], told["attempt"], told["dead"]) == (True, attempt, attempt == MAX_ATTEMPTS)
            if attempt == LANE_FAILURES:
                _, seen = await ask(client, "GET", "/reclaims?kind=segment")
                assert (seen["items"][0]["state"], seen["items"][0]["last_error"]) == ("delayed", "disk\nfull")
                assert seen["items"][0]["retry_in_ms"] == told["retry_in_ms"] > 0
                assert (seen["lanes"][0]["failures"], seen["lanes"][0]["closed_for_ms"] > 0) == (LANE_FAILURES, True)
            host.now_ms += 700_000
        _, dead = await ask(client, "GET", "/reclaims?state=dead&provider=files")
        assert [each["resource_id"] for each in dead["items"]] == ["bad"]
        assert [(lane["kind"], lane["dead"], lane["pending"]) for lane in dead["lanes"]] == [
            ("fine", 0, 1), ("segment", 1, 0),
        ]  # fmt: skip
        letters = {"provider": "files", "kind": "segment"}
        assert await ask(client, "POST", "/reclaims/retry", letters) == (200, {"retried": 1, "left": 0})
        assert (await ask(client, "GET", "/resources/bad"))[1]["reclaim"]["state"] == "pending"
        for _ in range(MAX_ATTEMPTS):
            (claimed,) = host.run(c.ClaimReclaims("files", "w", 1, 1_000, ("segment",)))
            host.run(c.NackReclaim("w", claimed.items[0].reclaim_id, claimed.items[0].token, "no"))
            host.now_ms += 700_000
        assert await ask(client, "POST", "/reclaims/purge", {"provider": "files"}) == (200, {"purged": 1, "left": 0})
        assert await code(client, "GET", "/resources/bad") == (404, "unknown_resource")

    scenario(run)


def test_a_waiting_claim_gets_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIM_LOOK_S", 3_600)

    async def run(host: LoneHost, client: Client) -> None:
        waits = [asyncio.ensure_future(ask(client, "POST", "/reclaims/claim", {**CLAIM, "wait_ms": 60_000, "max": 1}))]
        await until(lambda: len(host.proposed) == 1, "the first try")
        garbage(host, "other", kind="k")
        status, claimed = await waits[0]
        assert (status, [item["resource_id"] for item in claimed["items"]]) == (200, ["other"])
        status, empty = await ask(client, "POST", "/reclaims/claim", {**CLAIM, "wait_ms": 1})
        assert (status, empty["items"], empty["claim_left_ms"]) == (200, [], 0)

    scenario(run)


def test_one_clean_up_among_many_that_wait_is_not_asked_for_by_all() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        body = {**CLAIM, "wait_ms": 60_000}
        waits = [
            asyncio.ensure_future(ask(client, "POST", "/reclaims/claim", {**body, "worker_id": f"w{n}"}))
            for n in range(60)
        ]
        await until(lambda: len(host.proposed) == 60, "the first tries")
        host.gate = asyncio.Event()
        garbage(host, "one")
        await until(lambda: len(host.proposed) > 60, "the first to ask for it")
        host.gate.set()
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert sum(wait.done() for wait in waits) == 1
        assert len(host.proposed) <= 60 + service.CLAIMS_AT_ONCE
        for wait in waits:
            wait.cancel()

    scenario(run)


def test_a_waiting_claim_sees_a_lane_open_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIM_LOOK_S", 0.01)

    async def run(host: LoneHost, client: Client) -> None:
        garbage(host, *"abcdefgh")
        for _ in range(LANE_FAILURES):
            (claimed,) = host.run(c.ClaimReclaims("files", "w", 1, 1_000))
            host.run(c.NackReclaim("w", claimed.items[0].reclaim_id, claimed.items[0].token, "no", 0))
        wait = asyncio.ensure_future(ask(client, "POST", "/reclaims/claim", {**CLAIM, "wait_ms": 60_000}))
        await until(lambda: len(host.proposed) == 1, "the first try")
        host.now_ms += 700_000
        _, answer = await wait
        assert len(answer["items"]) == 1, "one at a time, after so many failures"

    scenario(run)


def test_a_waiting_claim_of_other_kinds_goes_on_waiting() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        body = {**CLAIM, "wait_ms": 60_000, "kinds": ["fine"]}
        wait = asyncio.ensure_future(ask(client, "POST", "/reclaims/claim", body))
        await until(lambda: len(host.proposed) == 1, "the first try")
        garbage(host, "a")
        garbage(host, "b", kind="fine")
        _, claimed = await wait
        assert [item["resource_id"] for item in claimed["items"]] == ["b"]
        assert len(host.proposed) == 2

    scenario(run)


def test_a_claim_repeated_under_its_id_gets_the_same() -> None:
    """Also when the first one waited, and also while it does."""

    async def run(host: LoneHost, client: Client) -> None:
        body = {**CLAIM, "wait_ms": 60_000, "request_id": "once"}
        waits = [asyncio.ensure_future(ask(client, "POST", "/reclaims/claim", body)) for _ in range(2)]
        await until(lambda: len(host.proposed) == 2, "both are waiting")
        garbage(host, "a")
        first, second = await asyncio.gather(*waits)
        assert first[1]["items"] == second[1]["items"] != []
        assert (await ask(client, "POST", "/reclaims/claim", body))[1]["items"] == first[1]["items"]
        garbage(host, "b")
        assert (await ask(client, "POST", "/reclaims/claim", body))[1]["items"] == first[1]["items"]

    scenario(run)


def test_a_node_that_stops_ends_the_waiting() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        wait = asyncio.ensure_future(ask(client, "POST", "/reclaims/claim", {**CLAIM, "wait_ms": 60_000}))
        await until(lambda: len(host.proposed) == 1, "the first try")
        host.replica.hub.stop()
        status, answer = await wait
        assert (status, answer["error"]["code"], answer["error"]["outcome"]) == (503, "stopping", "retry")

    scenario(run)
