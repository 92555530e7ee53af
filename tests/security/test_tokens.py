"""Access tokens from the request that makes one to its end, and the audit trail of what was done with them."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator.clientlimits import BUSY_LAG_S, MODEST_REQUESTS, PRESSURE_MOST
from coordinator.config import ConfigError, load_config
from coordinator.http import access
from coordinator.http.errors import ApiError
from coordinator.http.fields import hex_id
from coordinator.machine import commands as c
from coordinator.machine.accesscommands import CreateToken, Scope
from coordinator.tokens import digest_of, id_of, new_token, root_digest
from tests.api.calls import Events
from tests.cli.processes import REPOSITORY
from tests.http.scripted import Client
from tests.security.doorway import API, Door, behind_the_door, view_of
from tests.service.lone import LoneHost, serving
from tests.waiting import until

LOCK = {"lock_key": "k", "client_id": "bob", "lease_time_ms": 60_000}
WRITE: dict[str, Any] = {"identity": "bob", "scopes": [{"namespace": "default", "right": "write"}]}


async def acquire(door: Door, token: str, **more: Any) -> tuple[int, Any]:
    return await door.ask(token, "POST", f"{API}/locks/acquire", {**LOCK, **more})


# --- a token's life ---------------------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_kept_as_a_digest() -> None:
    async def scenario(door: Door) -> None:
        token_id, token = await door.made_by_api(**WRITE)
        assert id_of(token) == token_id and len(token.rpartition("_")[2]) * 4 >= 128
        assert (await acquire(door, token))[0] == 200
        for path in ("/tokens", f"/tokens/{token_id}", "/audit", "/telemetry"):
            status, answer = await door.ask(door.root, "GET", API + path)
            assert status == 200 and token.rpartition("_")[2] not in str(answer), path
        frozen = b"".join(door.host.replica.machine.freeze().chunks())
        assert digest_of(token) in frozen and token.rpartition("_")[2].encode() not in frozen
        assert not any(token.encode() in command for command in door.host.proposed)

    behind_the_door(scenario)


def test_a_revoked_token_is_refused_at_once() -> None:
    async def scenario(door: Door) -> None:
        token_id, token = await door.made_by_api(**WRITE)
        assert (await door.ask(door.root, "DELETE", f"{API}/tokens/{token_id}"))[0] == 200
        assert (await acquire(door, token))[0] == 401
        assert await door.code(door.root, "DELETE", f"{API}/tokens/{token_id}") == (404, "unknown_token")

    behind_the_door(scenario)


def test_refusals_are_counted() -> None:
    async def scenario(door: Door) -> None:
        token = door.token(("default", "read"))
        for used, status in ((None, 401), ("hf_x", 401), (token, 403)):
            assert (await door.ask(used, "POST", f"{API}/locks/acquire", LOCK))[0] == status
        _, numbers = await door.ask(door.root, "GET", f"{API}/telemetry")
        assert numbers["denials"] == {"unauthenticated": 2, "forbidden": 1}

    behind_the_door(scenario)


def test_a_token_expires_by_the_clock_of_the_cluster() -> None:
    async def scenario(door: Door) -> None:
        token_id, token = await door.made_by_api(**WRITE, ttl_ms=5_000)
        door.host.now_ms += 4_999
        assert (await acquire(door, token))[0] == 200
        door.host.now_ms += 1
        assert (await acquire(door, token))[0] == 401
        _, shown = await door.ask(door.root, "GET", f"{API}/tokens/{token_id}")
        assert shown["expires_in_ms"] == 0

    behind_the_door(scenario)


def test_a_new_secret_takes_the_place_of_the_old_one_after_the_overlap() -> None:
    async def scenario(door: Door) -> None:
        token_id, old = await door.made_by_api(**WRITE)
        _, answer = await door.ask(door.root, "POST", f"{API}/tokens/{token_id}/rotate", {"overlap_ms": 1_000})
        new = answer["token"]
        assert (await acquire(door, old))[0] == (await acquire(door, new))[0] == 200
        door.host.now_ms += 1_000
        assert ((await acquire(door, old))[0], (await acquire(door, new))[0]) == (401, 200)
        _, answer = await door.ask(door.root, "POST", f"{API}/tokens/{token_id}/rotate", {})
        assert ((await acquire(door, new))[0], (await acquire(door, answer["token"]))[0]) == (401, 200)

    behind_the_door(scenario)


def test_a_repeated_request_for_a_token_says_why_there_is_no_second_answer() -> None:
    async def scenario(door: Door) -> None:
        await door.made_by_api(**WRITE, request_id="once")
        again = await door.code(door.root, "POST", f"{API}/tokens", {**WRITE, "request_id": "once"})
        assert again == (409, "token_shown_once")
        assert len(door.host.replica.machine.tokens("", 10)) == 1

    behind_the_door(scenario)


def test_tokens_that_make_no_sense_are_refused() -> None:
    async def scenario(door: Door) -> None:
        wrongs: tuple[dict[str, Any], ...] = (
            {"identity": "a/b"}, {"identity": ""}, {"scopes": []}, {"scopes": [{"namespace": "x", "right": "own"}]},
            {"scopes": [{"namespace": "x", "right": "read"}] * 17}, {"ttl_ms": 0},
        )  # fmt: skip
        for wrong in wrongs:
            told = await door.code(door.root, "POST", f"{API}/tokens", {**WRITE, **wrong})
            assert told == (400, "bad_request"), wrong

    behind_the_door(scenario)


# --- waiting and watching ---------------------------------------------------------------------------------------------


def test_who_waits_is_out_of_the_queue_when_its_token_is_revoked() -> None:
    async def scenario(door: Door) -> None:
        token_id, token = await door.made_by_api(**WRITE)
        door.host.run(c.AcquireLock("k", "ann", 60_000))
        waiting = asyncio.ensure_future(acquire(door, token, block_time_ms=60_000))
        await until(lambda: door.host.replica.hub.waiting > 0, "a waiter")
        assert (await door.ask(door.root, "DELETE", f"{API}/tokens/{token_id}"))[0] == 200
        status, answer = await waiting
        assert (status, answer["error"]["code"]) == (401, "unauthenticated")
        await until(lambda: door.host.replica.machine.counts().waiters == 0, "an empty queue")

    behind_the_door(scenario)


def test_a_wait_ends_with_the_life_of_its_token() -> None:
    async def scenario(door: Door) -> None:
        _, token = await door.made_by_api(**WRITE, ttl_ms=50)
        door.host.run(c.AcquireLock("k", "ann", 60_000))
        waiting = asyncio.ensure_future(acquire(door, token, block_time_ms=60_000))
        await until(lambda: door.host.replica.hub.waiting > 0, "a waiter")
        door.host.now_ms += 50
        assert (await waiting)[0] == 401

    behind_the_door(scenario)


def test_a_wait_ends_with_the_overlap_of_the_secret_it_came_with() -> None:
    async def scenario(door: Door) -> None:
        token_id, old = await door.made_by_api(**WRITE)
        rotating = await door.ask(door.root, "POST", f"{API}/tokens/{token_id}/rotate", {"overlap_ms": 50})
        assert rotating[0] == 200
        door.host.run(c.AcquireLock("k", "ann", 60_000))
        waiting = asyncio.ensure_future(acquire(door, old, block_time_ms=60_000))
        await until(lambda: door.host.replica.hub.waiting > 0, "a waiter")
        door.host.now_ms += 50
        assert (await asyncio.wait_for(waiting, 20))[0] == 401

    behind_the_door(scenario)


def test_who_waits_is_granted_what_it_waits_for_all_the_same() -> None:
    """Tokens that come and go wake it; they do not end it."""

    async def scenario(door: Door) -> None:
        _, token = await door.made_by_api(**WRITE)
        (held,) = door.host.run(c.AcquireLock("k", "ann", 60_000))
        waiting = asyncio.ensure_future(acquire(door, token, block_time_ms=60_000))
        await until(lambda: door.host.replica.hub.waiting > 0, "a waiter")
        other_id, _ = await door.made_by_api(**WRITE)
        await door.ask(door.root, "DELETE", f"{API}/tokens/{other_id}")
        door.host.run(c.ReleaseLock("k", "ann", held.fencing_token))
        assert (await waiting)[0] == 200

    behind_the_door(scenario)


def test_a_watch_shows_what_its_token_reaches_and_ends_with_it() -> None:
    async def scenario(door: Door) -> None:
        scopes = [{"namespace": "default", "right": "read", "prefix": "b/"}]
        token_id, token = await door.made_by_api(identity="bob", scopes=scopes)
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        async with door.client.get(f"{API}/watch", headers=headers) as answer:
            assert answer.status == 200
            events = Events(answer)
            names = ("a/r", "b/r", "b/s")
            door.host.run(c.PutResources(names, "files", "segment"), c.PutEdges(("a/r", "b/s"), ("b/r", "b/r")))
            seen = [await events.next() for _ in range(3)]
            assert [(each["kind"], each["key"]) for each in seen[:2]] == [
                ("resource_registered", "b/r"), ("resource_registered", "b/s"),
            ]  # fmt: skip
            assert (seen[2]["kind"], seen[2]["key"], seen[2]["owner"]) == ("edge_added", "b/r", "b/s")
            # A client is no key, also if it is called like one.
            door.host.run(c.CreateSession("b/ann", 60_000), c.AcquireLock("a/1", "ann", 60_000))
            door.host.run(c.AcquireLock("b/1", "ann", 60_000))
            assert (await events.next())["key"] == "b/1"
            await door.ask(door.root, "DELETE", f"{API}/tokens/{token_id}")
            door.host.run(c.AcquireLock("b/2", "ann", 60_000))
            assert await events.next() == {"kind": "end", "reason": "token_ended"}
            assert await answer.content.read() == b"\n"

    behind_the_door(scenario)


# --- what it reaches --------------------------------------------------------------------------------------------------


def test_lists_are_narrowed_to_the_prefix_of_a_token() -> None:
    async def scenario(door: Door) -> None:
        door.host.run(*(c.AcquireLock(key, "ann", 60_000) for key in ("a/1", "b/1", "b/x/1", "c/1")))
        door.host.run(*(c.AcquireLease(key, "ann", 60_000) for key in ("a/1", "b/1")))
        one = door.token(("default", "read", "b/"))
        _, seen = await door.ask(one, "GET", f"{API}/locks")
        assert [lock["lock_key"] for lock in seen["locks"]] == ["b/1", "b/x/1"]
        _, seen = await door.ask(one, "GET", f"{API}/locks?prefix=b/x")
        assert [lock["lock_key"] for lock in seen["locks"]] == ["b/x/1"]
        _, seen = await door.ask(one, "GET", f"{API}/leases")
        assert [lease["resource_id"] for lease in seen["leases"]] == ["b/1"]
        assert await door.code(one, "GET", f"{API}/locks?prefix=a") == (403, "forbidden")
        two = door.token(("default", "read", "b/"), ("default", "write", "c/"))
        status, answer = await door.ask(two, "GET", f"{API}/locks")
        assert status == 403 and "b/, c/" in answer["error"]["message"]
        assert (await door.ask(two, "GET", f"{API}/locks?prefix=c"))[1]["locks"][0]["lock_key"] == "c/1"

    behind_the_door(scenario)


def test_namespaces_are_listed_to_whom_they_are_open() -> None:
    async def scenario(door: Door) -> None:
        for name in ("one", "two"):
            door.host.run(c.PutNamespace(9, 9, 9, 9, 9), namespace=name)
        _, seen = await door.ask(door.token(("two", "read", "x/")), "GET", f"{API}/namespaces")
        assert [each["namespace"] for each in seen["namespaces"]] == ["two"]
        _, seen = await door.ask(door.root, "GET", f"{API}/namespaces")
        assert [each["namespace"] for each in seen["namespaces"]] == ["default", "one", "two"]

    behind_the_door(scenario)


def test_a_node_that_is_behind_looks_again_before_it_refuses() -> None:
    async def scenario(door: Door) -> None:
        token = new_token("ahead")
        host = door.host
        read_index = host.read_index

        async def catching_up(timeout: float) -> Any:
            host.run(CreateToken("ahead", digest_of(token), "bob", (Scope("default", "write"),)))
            return await read_index(timeout)

        host.read_index = catching_up  # type: ignore[method-assign]
        assert (await acquire(door, token))[0] == 200

    behind_the_door(scenario)


def test_strangers_at_a_busy_node_are_turned_away_before_anything_is_done_for_them() -> None:
    async def scenario() -> None:
        host, gate = LoneHost(), access.Gate()
        view = view_of(host)
        view.admission.admit("default", 1_000_000)

        async def knock(header: str | None) -> str:
            with pytest.raises(ApiError) as refused:
                await gate.admit(view, header, None)
            return refused.value.code

        invented = f"Bearer {new_token('t1')}"
        for _ in range(2 * MODEST_REQUESTS):
            assert await knock(None) == "unauthenticated"
        assert await knock(invented) == "unauthenticated"
        before = host.reads
        while view.admission.pressure < PRESSURE_MOST:
            view.admission.tick(10 * BUSY_LAG_S)
        codes = [await knock(header) for header in (None, invented, "Bearer x") for _ in range(50)]
        assert codes.count("overloaded") > 140
        assert host.reads - before == codes[50:100].count("unauthenticated") < 5

    asyncio.run(scenario())


def test_a_token_comes_with_the_certificate_of_its_own_identity_or_with_none() -> None:
    async def scenario() -> None:
        host, token = LoneHost(), new_token("t1")
        host.run(CreateToken("t1", digest_of(token), "bob", (Scope("*", "admin"),)))
        view, gate = view_of(host), access.Gate()
        for certified in (None, "bob", "bob/nightly"):
            assert (await gate.admit(view, f"Bearer {token}", certified)).actor == ("bob", "t1")
        for certified in ("eve", "bob2", "eve/bob"):
            with pytest.raises(ApiError) as refused:
                await gate.admit(view, f"bearer {token}", certified)
            assert refused.value.code == "forbidden"

    asyncio.run(scenario())


def test_what_is_said_as_a_root_token() -> None:
    token = new_token("root")
    assert root_digest(token) == root_digest(f"sha256:{digest_of(token).hex()}") == digest_of(token)
    for wrong in ("", "root", new_token("other"), token.upper(), "sha256:" + "0" * 63, token + "\n"):
        assert root_digest(wrong) is None, wrong


def test_a_root_token_is_read_from_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    token, file, config = new_token("root"), tmp_path / "root.token", tmp_path / "n1.toml"
    config.write_text(
        'node_id = "n1"\ncluster_id = "c"\ndata_dir = "d"\nhttp = "127.0.0.1:1"\npeer = "127.0.0.1:2"\n'
        'secret = "0123456789abcdef"\ntokens = "required"\nroot_token_file = "root.token"\n'
    )
    for content, mode, wrong in ((token, 0o640, "chmod 600"), ("hf_root_short", 0o600, "holdfast token root")):
        file.write_text(content)
        file.chmod(mode)
        with pytest.raises(ConfigError, match=wrong) as refused:
            load_config(config, {})
        assert content not in str(refused.value)
    file.write_text(token + "\n")
    loaded = load_config(config, {})
    assert loaded.tokens_required and loaded.root_token == digest_of(token)
    assert token not in repr(loaded) and digest_of(token).hex() not in repr(loaded)


def test_secrets_are_compared_in_constant_time() -> None:
    """Where tokens are looked at, a digest meets another only inside of `hmac.compare_digest`."""
    text = (REPOSITORY / "coordinator" / "http" / "access.py").read_text()
    compared = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare)]
    by_value = [node for node in compared if not all(isinstance(each, ast.Is | ast.IsNot) for each in node.ops)]
    assert by_value and not [ast.unparse(node) for node in by_value if "digest" in ast.unparse(node)]
    assert text.count("hmac.compare_digest(") == 3


# --- the trail --------------------------------------------------------------------------------------------------------


def test_the_trail_says_who_did_what() -> None:
    async def scenario(door: Door) -> None:
        token_id, token = await door.made_by_api(identity="ops", scopes=[{"namespace": "default", "right": "admin"}])
        door.host.run(c.AcquireLock("k", "ann", 60_000))
        assert (await door.ask(token, "POST", f"{API}/locks/break", {"lock_key": "k"}))[0] == 200
        assert (await door.ask(token, "POST", f"{API}/locks/break", {"lock_key": "other"}))[0] == 404
        assert (await door.ask(door.root, "PUT", f"{API}/namespaces/n", {}))[0] == 200
        assert (await door.ask(door.root, "POST", f"{API}/cluster/transfer", {"target": "n2"}))[0] == 200
        await until(lambda: len(door.host.replica.machine.actions(None, 9)) == 5, "five actions")
        _, answer = await door.ask(door.root, "GET", f"{API}/audit?limit=4")
        told = [(each["identity"], each["token_id"], each["action"], each["subject"], each["outcome"])
                for each in answer["actions"]]  # fmt: skip
        assert told == [
            ("root", "root", "leader.transfer", "n2", "done"), ("root", "root", "leader.transfer", "n2", "begun"),
            ("root", "root", "namespace.put", "", "done"), ("ops", token_id, "lock.break", "k", "done"),
        ]  # fmt: skip
        assert answer["actions"][2]["namespace"] == "n"
        assert [each["revision"] for each in answer["actions"]] == sorted(
            (each["revision"] for each in answer["actions"]), reverse=True
        )
        _, rest = await door.ask(door.root, "GET", f"{API}/audit?before={answer['next']}")
        assert [each["action"] for each in rest["actions"]] == ["token.create"] and rest["next"] is None

    behind_the_door(scenario)


def test_what_is_done_in_the_place_of_a_client_is_in_the_trail() -> None:
    async def scenario(door: Door) -> None:
        _, token = await door.made_by_api(identity="ops", scopes=[{"namespace": "default", "right": "admin"}])
        host = door.host
        _, session = host.run(c.AcquireLease("r", "ann", 60_000), c.CreateSession("ann", 60_000))
        release = {"resource_id": "r", "client_id": "ann"}
        ended = f"{API}/sessions/{hex_id(session.session_id)}"
        assert (await door.ask(token, "POST", f"{API}/leases/release?forced=true", release))[0] == 200
        assert (await door.ask(token, "DELETE", f"{ended}?forced=true"))[0] == 200
        host.run(c.AcquireLease("r", "ann", 60_000))
        assert (await door.ask(token, "POST", f"{API}/leases/release", release))[0] == 200, "a client's own is no news"
        told = [(each.identity, each.action, each.subject) for each in host.replica.machine.actions(None, 9)]
        assert told[:2] == [
            ("ops", "session.end", f"default/{hex_id(session.session_id)}"), ("ops", "lease.revoke", "default/r"),
        ]  # fmt: skip

    behind_the_door(scenario)


def test_where_no_tokens_are_asked_for_nothing_is_refused_and_nobody_is_named() -> None:
    async def scenario() -> None:
        host = LoneHost()
        async with serving(host) as client:
            client_: Client = client
            host.run(c.AcquireLock("k", "ann", 60_000))
            broken = await client_.post(f"{API}/locks/break", json={"lock_key": "k"})
            made = await client_.post(f"{API}/tokens", json=WRITE, headers={"Authorization": "Bearer nonsense"})
            assert broken.status == made.status == 200
            (second, first) = (await (await client_.get(f"{API}/audit")).json())["actions"]
            assert (first["identity"], first["token_id"], first["action"]) == (None, None, "lock.break")
            assert second["action"] == "token.create"

    asyncio.run(scenario())
