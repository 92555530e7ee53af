"""Why something is alive, what it waits for, what would go: also while the graph changes under the search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import explaining
from coordinator.machine import commands as c
from coordinator.machine import explain as searches
from coordinator.machine.limits import LANE_FAILURES
from coordinator.service import SEARCHES_AT_ONCE
from tests.http.graph import ask, chain, code, loose, put, scenario
from tests.http.scripted import Client
from tests.service.lone import LoneHost


async def explained(client: Client, name: str) -> Any:
    status, answer = await ask(client, "GET", f"/resources/{name}/explain")
    assert status == 200, answer
    return answer


async def lost(client: Client, what: str, name: str = "a") -> tuple[list[str], bool]:
    status, answer = await ask(client, "GET", f"/resources/{name}/explain?what_if={what}")
    assert (status, answer.get("undecided")) == (200, False), answer
    assert answer["total"] == len(answer["would_reclaim"])
    return sorted(answer["would_reclaim"]), answer["reclaims_this"]


def test_why_something_is_alive() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        (session,) = host.run(c.CreateSession("a", 50_000))
        host.run(
            c.AcquireLease("root", "a", 60_000, session.session_id), put("root", "m1", "m2", "leaf", pinned=False),
            chain("root", "m1", "leaf"), chain("m1", "m2", "leaf"),
        )  # fmt: skip
        answer = await explained(client, "leaf")
        assert (answer["alive"], answer["path"], answer["waiting_for"]) == (True, ["root", "m1", "leaf"], None)
        root = answer["root"]
        assert (root["kind"], root["resource_id"], root["client_id"], root["ttl_ms"]) == ("lease", "root", "a", 50_000)
        assert root["session_id"] == f"{session.session_id:016x}"
        assert answer["revision"] == host.applied
        host.run(
            put("pin"),
            put("stays", pinned=False, on_lost="orphan"),
            put("buffered", pinned=False, safety_buffer_ms=800),
        )
        host.run(put("blocker", "held", pinned=False, safety_buffer_ms=1), c.PutEdges(("blocker",), ("held",), "block"))
        host.now_ms += 500
        host.run()
        for name, kind in (("pin", "pinned"), ("stays", "orphan"), ("blocker", "blocked"), ("buffered", "buffer")):
            answer = await explained(client, name)
            assert (answer["alive"], answer["root"]["kind"], answer["path"]) == (True, kind, [name])
        assert (answer["root"]["hold_left_ms"], answer["waiting_for"]["kind"]) == (300, "safety_buffer")
        assert (await explained(client, "held"))["path"] == ["blocker", "held"]
        assert await code(client, "GET", "/resources/none/explain") == (404, "unknown_resource")

    scenario(run)


def test_a_lease_is_a_better_reason_than_a_buffer() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        loose(host, "root", "leaf", safety_buffer_ms=30_000)
        answer = await explained(client, "leaf")
        assert (answer["root"]["kind"], answer["path"]) == ("lease", ["root", "leaf"])

    scenario(run)


def test_why_something_is_not_gone_yet() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        host.run(put("p", "q"), c.PutEdges(("p", "q"), ("q", "p")), put("p", "q", pinned=False))
        answer = await explained(client, "p")
        assert (answer["alive"], answer["state"], answer["waiting_for"]["kind"]) == (False, "suspect", "collection")
        assert (answer["root"], answer["path"]) == (None, [])
        host.run(put("d", pinned=False, safety_buffer_ms=900), c.DeleteResource("d"))
        waiting = (await explained(client, "d"))["waiting_for"]
        assert (waiting["kind"], waiting["left_ms"], waiting["reclaim"]["state"]) == ("safety_buffer", 900, "delayed")
        host.now_ms += 1_000
        host.run()
        waiting = (await explained(client, "d"))["waiting_for"]
        assert (waiting["kind"], waiting["reclaim"]["state"], waiting["lane_closed_for_ms"]) == ("worker", "pending", 0)
        for _ in range(LANE_FAILURES):
            host.now_ms += 700_000
            (claimed,) = host.run(c.ClaimReclaims("files", "w", 1, 1_000))
            host.run(c.NackReclaim("w", claimed.items[0].reclaim_id, claimed.items[0].token, "no disk"))
        waiting = (await explained(client, "d"))["waiting_for"]
        assert (waiting["reclaim"]["attempt"], waiting["reclaim"]["last_error"]) == (LANE_FAILURES, "no disk")
        assert waiting["lane_closed_for_ms"] > 0 < waiting["reclaim"]["retry_in_ms"]

    scenario(run)


def test_what_would_go() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        (session,) = host.run(c.CreateSession("s", 50_000))
        host.run(
            c.AcquireLease("a", "s", 1, session.session_id), c.AcquireLease("x", "y", 60_000),
            put("a", "b/1", "b", "d", "e", "x", pinned=False), put("keep"), chain("a", "b/1", "b", "d"),
            c.PutEdges(("keep", "x", "b"), ("b", "d", "a")), c.PutEdges(("b/1",), ("e",), "orphan"),
        )  # fmt: skip
        (held,) = host.run(c.AcquireLease("a", "s", 1, session.session_id))
        every = "revoke:session/{0:016x} revoke:lease/{1:016x} revoke:client/s"
        for what in every.format(session.session_id, held.lease_id).split():
            assert await lost(client, what) == ([], False), "keep still refers to it over b"
        host.run(c.DeleteEdge("keep", "b"))
        for what in every.format(session.session_id, held.lease_id).split():
            assert await lost(client, what) == (["a", "b", "b/1"], True), "x has d; e stays by its edge"
        assert await lost(client, "revoke:client/y", "d") == (["x"], False)
        assert await lost(client, "revoke:client/nobody") == ([], False)
        assert await lost(client, "delete:resource/b/1", "b") == (["b", "b/1"], True)
        assert await lost(client, "delete:edge/b/1/b", "b") == (["b"], True)
        assert await lost(client, "delete:edge/a/b/1", "a") == (["b", "b/1"], False)
        for what, refusal in (
            ("revoke:session/00000009000000ff", "unknown_session"), ("revoke:lease/00000009000000ff", "unknown_lease"),
            ("delete:resource/no", "unknown_resource"), ("delete:edge/a/d", "unknown_edge"),
        ):  # fmt: skip
            assert await code(client, "GET", f"/resources/a/explain?what_if={what}") == (404, refusal)

    scenario(run)


def test_what_would_go_comes_true() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        loose(host, "a", "b", "c", "d")
        host.run(put("keep"), c.PutEdges(("keep",), ("c",)))
        expected, _ = await lost(client, "revoke:client/a")
        host.run(c.ReleaseLease("a", "a"))
        gone = (await ask(client, "GET", "/resources?state=reclaiming"))[1]["resources"]
        assert sorted(each["resource_id"] for each in gone) == expected == ["a", "b"]

    scenario(run)


def test_a_long_list_is_cut_and_counted() -> None:
    async def run(host: LoneHost, client: Client) -> None:
        names = [f"n{n}" for n in range(1_500)]
        loose(host, "a", *names[:800])
        host.run(put(*names[800:]), chain(*names[799:]), put(*names[800:], pinned=False))
        _, answer = await ask(client, "GET", "/resources/n7/explain?what_if=revoke:client/a")
        assert (answer["total"], answer["truncated"], len(answer["would_reclaim"])) == (1_501, True, 1_000)
        assert answer["reclaims_this"] is True

    scenario(run)


# --- searches over a graph that changes -------------------------------------------------------------------------------


def meanwhile(monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], Any]) -> list[int]:
    """Small slices; at the end of each the next action happens. Counts the slices."""
    monkeypatch.setattr(searches, "VISITS_A_SLICE", 10)
    waiting, slices = list(actions), [0]

    async def turn(_: float) -> None:
        slices[0] += 1
        if waiting:
            waiting.pop(0)()

    # Only there: whoever else sleeps for a moment must really do so.
    monkeypatch.setattr(explaining, "asyncio", SimpleNamespace(sleep=turn))
    return slices


def test_a_path_that_is_cut_behind_the_search_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        names = tuple(f"n{n}" for n in range(40))
        loose(host, *names)
        host.run(put("n39", pinned=False, safety_buffer_ms=90_000))
        with monkeypatch.context() as patch:
            slices = meanwhile(patch, lambda: host.run(c.DeleteEdge("n35", "n36"), put("n36")))
            answer = await explained(client, "n39")
            assert slices[0] >= 2
        assert answer["path"] == ["n36", "n37", "n38", "n39"]
        assert answer["root"]["kind"] == "pinned"

    scenario(run)


def test_support_that_comes_behind_the_search_is_not_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        names = tuple(f"n{n}" for n in range(40))
        host.run(put(*names), chain(*names, names[0]), put("far"), put(*names, pinned=False))
        for change in (c.PutEdges(("far",), ("n39",)), c.AcquireLease("n39", "x", 60_000), put("n39")):
            with monkeypatch.context() as patch:
                meanwhile(patch, lambda change=change: host.run(change))
                answer = await explained(client, "n39")
            assert (answer["alive"], answer["path"][-1]) == (True, "n39"), change
            host.run(c.DeleteEdge("far", "n39"), c.ReleaseLease("n39", "x"), put("n39", pinned=False))
        with monkeypatch.context() as patch:
            meanwhile(patch, lambda: host.run(put("unrelated")))
            assert (await explained(client, "n39"))["alive"] is False

    scenario(run)


def test_a_search_that_is_overtaken_again_and_again_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        names = tuple(f"n{n}" for n in range(40))
        host.run(put(*names), chain(*names, names[0]), put("far"), put(*names, pinned=False))

        def disturb() -> None:
            host.run(c.PutEdges(("far",), ("n38",)), c.DeleteEdge("far", "n38"))

        with monkeypatch.context() as patch:
            meanwhile(patch, *[disturb] * 100)
            answer = await explained(client, "n39")
        assert (answer["alive"], answer["undecided"], answer["state"]) == (None, True, "suspect")

    scenario(run)


def test_a_snapshot_in_the_middle_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        names = tuple(f"n{n}" for n in range(40))
        loose(host, *names)
        chunks = list(host.replica.machine.freeze().chunks())
        host.run(put("n5"))
        for query, key in (("", "path"), ("?what_if=revoke:client/a", "would_reclaim")):
            with monkeypatch.context() as patch:
                meanwhile(patch, lambda: host.replica.restore(chunks))
                _, answer = await ask(client, "GET", f"/resources/n39/explain{query}")
            assert answer[key] == list(names)

    scenario(run)


def test_a_search_that_goes_too_far_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(host: LoneHost, client: Client) -> None:
        loose(host, *(f"n{n}" for n in range(100)))
        monkeypatch.setattr(searches.RootSearch.__init__, "__defaults__", (50,))
        monkeypatch.setattr(searches.LossSearch.__init__, "__defaults__", (50,))
        assert (await explained(client, "n20"))["alive"] is True
        answer = await explained(client, "n99")
        assert (answer["alive"], answer["undecided"], answer["root"]) == (None, True, None)
        _, answer = await ask(client, "GET", "/resources/n99/explain?what_if=revoke:client/a")
        assert (answer["undecided"], answer["total"], answer["reclaims_this"]) == (True, None, None)

    scenario(run)


def test_a_search_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is under way or waits for others; and then it is in nobody's way."""

    async def run(host: LoneHost, client: Client) -> None:
        loose(host, *(f"n{n}" for n in range(40)))
        path = "/resources/n39/explain?timeout_ms=1000"
        with monkeypatch.context() as patch:
            patch.setattr(searches, "VISITS_A_SLICE", 10)
            patch.setattr(explaining, "asyncio", SimpleNamespace(sleep=_for_ever))
            asked = [path, f"{path}&what_if=revoke:client/a"] * SEARCHES_AT_ONCE
            async with asyncio.timeout(30):
                answers = await asyncio.gather(*(ask(client, "GET", each) for each in asked))
        told = {(status, answer["error"]["code"], answer["error"]["outcome"]) for status, answer in answers}
        assert told == {(503, "deadline", "retry")}
        assert (await explained(client, "n39"))["alive"] is True

    scenario(run)


async def _for_ever(_: float) -> None:
    await asyncio.Event().wait()
