"""Members that join: a client goes on with them when none of those it was given is there any more."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coordinator.cli import main
from coordinator.client import Client, pulse
from coordinator.client.errors import HoldfastError
from coordinator.client.members import LEARN_AGAIN_S, RETURN_S
from tests.cli.processes import REPOSITORY
from tests.client.nodes import TIMING, Nodes, nodes
from tests.client.running import run
from tests.client.scripted import Asked, Reply, Scripted, ok, refused, scripted
from tests.ports import free_address
from tests.waiting import until

TTL = 30.0


@contextlib.contextmanager
def joining(directory: Path, name: str) -> Iterator[tuple[str, str]]:
    """A node that is no member yet, at these addresses."""
    http, peer = free_address(), free_address()
    config = directory / f"{name}.toml"
    text = (directory / "n1.toml").read_text().split("[[members]]")[0].split("[timing]")[0]
    told = {"node_id": name, "data_dir": name, "http": http, "peer": peer}
    kept = [line for line in text.splitlines() if line.partition("=")[0].strip() not in told]
    config.write_text("\n".join([*kept, *(f'{key} = "{value}"' for key, value in told.items())]) + TIMING)
    command = [sys.executable, "-m", "coordinator.cli", "node", "--config", str(config), "--parent", str(os.getpid())]
    with open(directory / f"{name}.log", "wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
    try:
        yield http, peer
    finally:
        process.kill()
        process.wait(timeout=90)


def test_a_client_outlives_all_the_nodes_it_was_given(tmp_path: Path) -> None:
    """Each is replaced in its turn, and stopped. A lock is held through all of it, and calls are made all the time."""

    async def scenario(cluster: Nodes, stack: contextlib.ExitStack) -> None:
        async with Client(cluster.endpoints, timeout=30.0) as client, client.lock("members/held", TTL) as held:
            calls, going = 0, True

            async def work() -> None:
                nonlocal calls
                while going:
                    async with client.lock("members/work", TTL, wait=30):
                        calls += 1

            working = asyncio.ensure_future(work())
            asked = cluster.endpoints[0]
            new = {f"n{number}": stack.enter_context(joining(tmp_path, f"n{number}")) for number in (4, 5, 6)}
            for name, (fresh, (http, peer)) in zip(cluster.names, new.items(), strict=True):
                command = ["member", "replace", name, fresh, "--peer", peer, "--http", http]
                said = io.StringIO()
                with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                    code = await asyncio.to_thread(main, [*command, "--endpoint", asked.removeprefix("http://")])
                assert code == 0, said.getvalue()
                asked = f"http://{http}"
                cluster.send(name, signal.SIGTERM)
                await cluster.ended(name)
                before = calls
                await until(lambda before=before: calls > before + 5, "work to go on")
                held.check()
            now = [f"http://{http}" for http, _ in new.values()]
            await until(lambda: set(client.calls.endpoints[:3]) == set(now), "the last to be learned")
            going = False
            await working
            assert client.calls.endpoints[3:] == cluster.endpoints  # what was given is not forgotten
            print(f"\n{calls} locks while three members were replaced by three others; held throughout: {held.token}")

    with nodes(tmp_path) as cluster, contextlib.ExitStack() as stack:
        run(lambda: scenario(cluster, stack))


# --- what is learned, and what is not ---------------------------------------------------------------------------------


class Town:
    """Nodes that answer as told, and tell of each other."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.cluster_id, self.revision, self.changed = "c", 5, "3"

    def view(self, **more: Any) -> dict[str, Any]:
        members = [{"id": name, "http": address} for name, address in self.told.items()]
        return {"cluster_id": self.cluster_id, "revision": self.revision, "members": members, **more}

    def reply(self, **more: Any) -> Reply:
        async def reply(asked: Asked) -> web.Response | None:
            body = self.view(**more) if asked.path == "/cluster" else {}
            return ok(body, X_Holdfast_Leader="a", X_Holdfast_Members=self.changed)

        return reply


async def silent(_: Asked) -> web.Response | None:
    return None


@contextlib.asynccontextmanager
async def town(*others: dict[str, Any]) -> AsyncIterator[tuple[Town, Scripted, list[Scripted]]]:
    """One node that is given, and others that it tells of."""
    made = Town()
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(scripted(made.reply()))
        rest = [await stack.enter_async_context(scripted(made.reply(**more))) for more in others]
        made.told = {name: node.address for name, node in zip("abcdef", [first, *rest], strict=False)}
        yield made, first, rest


async def looked(client: Client, node: Scripted, times: int = 1) -> None:
    """It has asked for the members so often, and thought about it."""
    client.calls.members._due = 0.0
    await client.call("GET", "/thing")
    await until(lambda: len(node.of("/cluster")) >= times, "the members to be asked for")
    learning = client.calls.members._learning
    assert learning is not None
    await learning


def test_one_node_is_enough_to_learn_of_the_others() -> None:
    async def scenario() -> None:
        async with town({}, {}) as (_, first, (second, third)), Client(first.address) as client:
            await looked(client, first)
            found = {f"http://{node.address}" for node in (first, second, third)}
            assert set(client.calls.endpoints) == found and client.calls.endpoints[0] == f"http://{first.address}"
            assert client.calls.current == f"http://{first.address}"  # it leads
            client.calls.move_on()
            await client.call("GET", "/other")
            assert len(first.of("/other")) == 0

    run(scenario)


def test_what_nobody_answers_at_and_another_cluster_are_never_asked() -> None:
    async def scenario() -> None:
        async with town({"cluster_id": "another"}) as (told, first, (stranger,)), Client(first.address) as client:
            told.told |= {"x": "127.0.0.1:1", "y": "no-such-host.invalid:7101", "z": "nonsense", "e": ""}
            await looked(client, first)
            assert client.calls.endpoints == [f"http://{first.address}"]
            for _ in range(5):
                await client.call("POST", "/thing")
            assert not stranger.of("/thing") and len(first.of("/thing")) >= 5

    run(scenario)


def test_who_comes_by_another_way_learns_nothing() -> None:
    """None of the addresses is one that it was given: they are for others."""

    async def scenario() -> None:
        async with town({}) as (told, first, (second,)), Client(first.address) as client:
            told.told["a"] = "inside:7101"
            await looked(client, first)
            assert client.calls.endpoints == [f"http://{first.address}"] and not second.asked

    run(scenario)


def test_it_can_be_switched_off() -> None:
    async def scenario() -> None:
        async with town({}) as (_, first, (second,)), Client(first.address, follow_members=False) as client:
            for _ in range(5):
                await client.call("GET", "/thing")
            assert client.calls.endpoints == [f"http://{first.address}"]
            assert not first.of("/cluster") and not second.asked

    run(scenario)


def test_a_node_that_is_behind_unmakes_nothing() -> None:
    async def scenario() -> None:
        async with town({}) as (told, first, (second,)), Client(first.address) as client:
            await looked(client, first)
            both = [f"http://{first.address}", f"http://{second.address}"]
            assert client.calls.endpoints == both
            del told.told["b"]
            told.revision -= 1
            await looked(client, first, 2)
            assert client.calls.endpoints == both
            told.revision += 2
            await looked(client, first, 3)
            assert client.calls.endpoints == both[:1]  # it has left

    run(scenario)


def test_an_answer_that_speaks_of_other_members_is_enough_to_look() -> None:
    async def scenario() -> None:
        async with town() as (told, first, _), scripted(told.reply()) as joined, Client(first.address) as client:
            await looked(client, first)
            assert client.calls.endpoints == [f"http://{first.address}"]
            told.told["b"], told.changed = joined.address, "7"
            client.calls.members._looked -= 2 * LEARN_AGAIN_S
            await client.call("GET", "/thing")
            await until(lambda: len(client.calls.endpoints) == 2, "the one that joined to be learned")
            asked = len(first.of("/cluster"))
            for told.changed in ("7", "6", "", "-1", "x", "9" * 30):
                client.calls.members._looked -= 2 * LEARN_AGAIN_S
                await client.call("GET", "/thing")
            assert len(first.of("/cluster")) == asked  # none of them is greater than it was

    run(scenario)


@pytest.mark.parametrize("cluster_id", ["c", "another"])
def test_who_was_told_of_and_not_reached_is_asked_when_all_others_are_gone(cluster_id: str) -> None:
    """Those that were given are replaced within a moment: the client may have been told of one that had not started."""

    async def scenario() -> None:
        async with town({}, {}) as (told, first, (second, third)), Client(first.address, timeout=5.0) as client:
            second.reply = third.reply = silent
            await looked(client, first)
            assert client.calls.endpoints == [f"http://{first.address}"]
            first.reply, second.reply, third.reply = silent, told.reply(cluster_id=cluster_id), told.reply()
            del told.told["a"]
            told.told["d"] = told.told.pop("c")
            if cluster_id == "another":
                third.reply = silent
                with pytest.raises(HoldfastError):
                    await client.call("GET", "/thing", timeout=2.0)
                assert not second.of("/thing")
            else:
                await client.call("GET", "/thing")
                assert set(client.calls.endpoints[:2]) == {f"http://{second.address}", f"http://{third.address}"}
                assert client.calls.endpoints[2:] == [f"http://{first.address}"]

    run(scenario)


def test_a_leader_that_fails_is_left_until_it_has_answered_again() -> None:
    """The others say that it leads, and where it is: whoever turned back each time would never ask another."""

    async def scenario() -> None:
        async with town({}, {}) as (told, first, others), Client(first.address) as client:
            members, leader = client.calls.members, f"http://{first.address}"
            await looked(client, first)
            first.reply = silent
            for number in range(3):
                await client.call("GET", "/thing")
                seen = sum(len(other.of("/cluster")) for other in others)
                members._due = 0.0
                await client.call("GET", "/thing")
                await until(lambda seen=seen: sum(len(other.of("/cluster")) for other in others) > seen, "a look")
                await members._learning
                assert client.calls.current != leader, number
            asked = len(first.of("/cluster"))
            first.reply = told.reply()
            await looked(client, first, asked + 1)
            assert client.calls.current != leader  # it failed a moment ago
            members._failed[leader] -= RETURN_S
            await looked(client, first, asked + 2)
            assert client.calls.current == leader

    run(scenario)


def test_who_only_waits_hears_of_other_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "LOOK_EVERY_S", 0.05)

    async def scenario() -> None:
        async with town() as (told, first, _), scripted(told.reply()) as joined, Client(first.address) as client:
            await looked(client, first)
            granted, reply = asyncio.Event(), told.reply()

            async def waiting(asked: Asked) -> web.Response | None:
                if asked.path == "/queue":
                    await granted.wait()
                return await reply(asked)

            first.reply = waiting
            wait = asyncio.ensure_future(client.calls.call("POST", "/queue", waits=60.0))
            told.told["b"], told.changed = joined.address, "7"
            await until(lambda: len(client.calls.endpoints) == 2, "the one that joined to be learned")
            granted.set()
            await wait

    run(scenario)


def test_a_node_that_was_removed_and_knows_no_leader_tells_who_is_there() -> None:
    async def scenario() -> None:
        async with town() as (told, first, _), scripted(told.reply()) as joined, Client(first.address) as client:
            await looked(client, first)

            async def removed(asked: Asked) -> web.Response | None:
                if asked.path == "/cluster":
                    return ok(told.view(), X_Holdfast_Leader="")
                return refused(503, "retry", X_Holdfast_Leader="")

            first.reply, told.told = removed, {"b": joined.address}
            await client.call("GET", "/thing", timeout=20.0)
            assert joined.of("/thing")
            assert client.calls.endpoints == [f"http://{joined.address}", f"http://{first.address}"]

    run(scenario)


@pytest.mark.parametrize("restored", [True, False])
def test_another_cluster_is_believed_only_where_it_was_given(restored: bool) -> None:
    """After a restore the same addresses are of a new cluster, whose revisions may be lower."""

    async def scenario() -> None:
        async with town({}) as (told, first, (second,)), Client(first.address) as client:
            await looked(client, first)
            both = [f"http://{first.address}", f"http://{second.address}"]
            assert client.calls.endpoints == both
            if restored:
                told.cluster_id, told.revision, told.changed = "d", 1, "0"
                del told.told["b"]
                await looked(client, first, 2)
                assert client.calls.endpoints == both[:1]
            else:
                first.reply, second.reply = silent, told.reply(cluster_id="d", members=[])
                client.calls.members._looked -= 2 * LEARN_AGAIN_S
                client.calls.members.unreached(both[0])
                await until(lambda: len(second.of("/cluster")) > 1, "the others to be asked")
                await client.calls.members._learning
                assert client.calls.members._cluster_id == "c" and client.calls.endpoints == both

    run(scenario)


@pytest.mark.parametrize("said", [{"members": None}, {"members": [{}]}, {"members": "abc"}, {"revision": "x"}])
def test_nonsense_is_no_harm(said: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with town() as (told, first, _), Client(first.address) as client:
            first.reply = told.reply(**said)
            await looked(client, first)
            await client.call("GET", "/thing")
            assert client.calls.endpoints == [f"http://{first.address}"]

    run(scenario)
