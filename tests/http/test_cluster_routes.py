"""/api/v1/cluster and the health routes: answers, refusals, and what reaches the host."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgpack
import pytest

from cluster.ports import Denied, Member, Outcome, Unknown
from tests.http.scripted import Client, ScriptedHost, ScriptedMember, serving, with_client

about = partial(pytest.approx, abs=0.4)
"""Seconds that are left of those that were allowed."""
MEMBER = {"id": "n4", "peer": "10.0.0.4:7200", "http": "10.0.0.4:7100"}


def test_the_cluster_document() -> None:
    async def scenario(client: Client) -> None:
        answer = await client.get("/api/v1/cluster")
        assert answer.status == 200
        assert answer.headers["X-Holdfast-Revision"] == "17"
        assert answer.headers["X-Holdfast-Leader"] == "n1"
        body = await answer.json()
        assert set(body) == {"cluster_id", "leader", "term", "revision", "level", "members"}
        assert (body["cluster_id"], body["leader"], body["term"], body["revision"]) == ("c", "n1", 3, 17)
        named = {"id", "role", "http", "peer", "pid", "term", "applied", "known_level"}
        assert [set(m) for m in body["members"]] == [named] * 3

    with_client(ScriptedHost(), scenario)


def test_msgpack_by_accept_and_content_type() -> None:
    host = ScriptedHost()

    async def scenario(client: Client) -> None:
        answer = await client.post(
            "/api/v1/cluster/transfer",
            data=msgpack.packb({"target": "n2"}),
            headers={"Content-Type": "application/msgpack", "Accept": "application/msgpack"},
        )
        assert answer.status == 200
        assert msgpack.unpackb(await answer.read())["leader"] == "n1"

    with_client(host, scenario)
    assert host.calls == [("transfer", "n2", about(30.0))]


@pytest.mark.parametrize(
    ("method", "path", "body", "call"),
    [
        ("POST", "/members", MEMBER, ("add_member", Member("n4", "10.0.0.4:7200", "10.0.0.4:7100"), about(30.0))),
        ("DELETE", "/members/n4?timeout_ms=500", None, ("remove_member", "n4", about(0.5))),
        ("POST", "/transfer", None, ("transfer", None, about(30.0))),
        ("POST", "/transfer", {"target": "n3"}, ("transfer", "n3", about(30.0))),
        ("POST", "/snapshot", {}, ("snapshot", about(30.0))),
    ],
)
def test_operations_reach_the_host(method: str, path: str, body: Any, call: tuple[Any, ...]) -> None:
    host = ScriptedHost()

    async def scenario(client: Client) -> None:
        answer = await client.request(method, "/api/v1/cluster" + path, json=body)
        assert answer.status == 200, await answer.text()
        assert (await answer.json())["cluster_id"] == "c"

    with_client(host, scenario)
    assert host.calls == [call]


@pytest.mark.parametrize(
    ("outcome", "status", "meaning"),
    [
        (Denied("no_leader", "m"), 503, "retry"),
        (Denied("not_leader", "m"), 503, "retry"),
        (Denied("stopping", "m"), 503, "retry"),
        (Denied("overloaded", "m"), 429, "retry"),
        (Denied("change_pending", "m"), 409, "retry"),
        (Denied("not_a_member", "m"), 404, "denied"),
        (Denied("too_large", "m"), 413, "denied"),
        (Denied("anything_else", "m"), 409, "denied"),
        (Unknown("timeout", "m"), 503, "unknown"),
    ],
)
def test_outcomes(outcome: Outcome, status: int, meaning: str) -> None:
    async def scenario(client: Client) -> None:
        answer = await client.post("/api/v1/cluster/transfer")
        assert answer.status == status
        assert ("Retry-After" in answer.headers) == (meaning == "retry")
        assert isinstance(outcome, Denied | Unknown)
        expected = {"code": outcome.code, "message": "m", "outcome": meaning, "details": {}}
        assert await answer.json() == {"error": expected}

    with_client(ScriptedHost(outcome=outcome), scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/members", b"{", 400, "bad_request"),
        ("POST", "/members", b"[]", 400, "bad_request"),
        ("POST", "/members", b"[" * 4000, 400, "bad_request"),
        ("POST", "/members", b"\xff\xfe", 400, "bad_request"),
        ("POST", "/members", b"{}", 400, "bad_request"),
        ("POST", "/members", b'{"id": "n4", "peer": "h:1"}', 400, "bad_request"),
        ("POST", "/members", b'{"id": "n4", "peer": "h:1", "http": "h"}', 400, "bad_request"),
        ("POST", "/members", b'{"id": "n4", "peer": "h:1", "http": "0.0.0.0:1"}', 400, "bad_request"),
        ("POST", "/members", b'{"id": "n 4", "peer": "h:1", "http": "h:2"}', 400, "bad_request"),
        ("POST", "/members", b'{"id": 4, "peer": "h:1", "http": "h:2"}', 400, "bad_request"),
        ("POST", "/members", b'{"idd": "n4"}', 400, "bad_request"),
        ("POST", "/members", b"x" * 5000, 413, "too_large"),
        ("DELETE", "/members/" + "x" * 65, b"", 400, "bad_request"),
        ("DELETE", "/members/n4?timeout_ms=0", b"", 400, "bad_request"),
        ("DELETE", "/members/n4?timeout_ms=1e3", b"", 400, "bad_request"),
        ("DELETE", "/members/n4?timeout_ms=" + "9" * 4000, b"", 400, "bad_request"),
        ("DELETE", "/members/n4", b'{"force": true}', 400, "bad_request"),
        ("DELETE", "/members/n4", b"{", 400, "bad_request"),
        ("POST", "/transfer", b'{"request_id": ""}', 400, "bad_request"),
        ("POST", "/snapshot", b'{"request_id": 5}', 400, "bad_request"),
        ("POST", "/transfer", b'{"target": true}', 400, "bad_request"),
        ("PUT", "/transfer", b"", 405, "method_not_allowed"),
        ("GET", "/nothing", b"", 404, "not_found"),
    ],
)
def test_refused_requests_never_reach_the_host(method: str, path: str, body: bytes, status: int, code: str) -> None:
    host = ScriptedHost()

    async def scenario(client: Client) -> None:
        answer = await client.request(
            method, "/api/v1/cluster" + path, data=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status == status
        assert answer.headers["X-Holdfast-Leader"] == "n1"
        error = (await answer.json())["error"]
        assert set(error) == {"code", "message", "outcome", "details"}
        assert (error["code"], error["outcome"]) == (code, "denied")

    with_client(host, scenario)
    assert host.calls == []


@pytest.mark.parametrize(
    ("method", "path", "body", "denied", "status"),
    [
        ("POST", "/members", {"id": "n3", "peer": "127.0.0.1:2", "http": "127.0.0.1:1"}, "member_exists", 200),
        ("POST", "/members", {"id": "n3", "peer": "127.0.0.1:9", "http": "127.0.0.1:1"}, "member_exists", 409),
        ("POST", "/members", {"id": "n3", "peer": "127.0.0.1:2", "http": "127.0.0.1:1"}, "change_pending", 409),
        ("DELETE", "/members/n4", {}, "not_a_member", 200),
        ("DELETE", "/members/n4", {}, "quorum_at_risk", 503),
        ("POST", "/transfer", {"target": "n1"}, "no_target", 200),
        ("POST", "/transfer", {"target": "n2"}, "no_target", 409),
        ("POST", "/transfer", {}, "no_target", 409),
    ],
)
@pytest.mark.parametrize("where", ["body", "header", "nowhere"])
def test_with_a_request_id_what_is_so_already_is_done(
    method: str, path: str, body: dict[str, Any], denied: str, status: int, where: str
) -> None:
    """A repeat after an unknown outcome, perhaps at a new leader: it asks for what is so."""

    async def scenario(client: Client) -> None:
        said = {**body, "request_id": "id"} if where == "body" else body
        headers = {"Idempotency-Key": "id"} if where == "header" else {}
        answer = await client.request(method, "/api/v1/cluster" + path, json=said, headers=headers)
        if where == "nowhere":
            assert answer.status in (404, 409, 503)
        else:
            assert answer.status == status, await answer.text()
        if answer.status == 200:
            assert (await answer.json())["cluster_id"] == "c"

    with_client(ScriptedHost(outcome=Denied(denied, "m")), scenario)


def test_a_chunked_body_is_stopped_at_the_cap() -> None:
    async def chunks() -> Any:
        for _ in range(100):
            yield b" " * 1024

    async def scenario(client: Client) -> None:
        answer = await client.post(
            "/api/v1/cluster/members", data=chunks(), headers={"Content-Type": "application/json"}
        )
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == "too_large"

    with_client(ScriptedHost(), scenario)


def test_an_unsupported_type() -> None:
    async def scenario(client: Client) -> None:
        answer = await client.post("/api/v1/cluster/transfer", data=b"<a/>", headers={"Content-Type": "text/xml"})
        assert answer.status == 415

    with_client(ScriptedHost(), scenario)


def test_a_bug_in_a_route_is_an_unknown_outcome(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedHost):
        async def transfer(self, target: str | None, timeout: float) -> Outcome:
            raise RuntimeError("planted")

    async def scenario(client: Client) -> None:
        answer = await client.post("/api/v1/cluster/transfer")
        assert answer.status == 500
        error = (await answer.json())["error"]
        assert (error["code"], error["outcome"]) == ("internal", "unknown")
        assert "planted" not in error["message"]

    with_client(Broken(), scenario)
    assert "planted" in caplog.text


# --- health ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "host", "ready"),
    [
        ("running", ScriptedHost(), True),
        ("running", ScriptedHost(ready=False, reason="no leader is known"), False),
        ("starting", ScriptedHost(), False),
        ("stopping", ScriptedHost(), False),
        ("stopped", ScriptedHost(), False),
    ],
)
def test_health(phase: str, host: ScriptedHost, ready: bool) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.get("/healthz")).status == 200
        answer = await client.get("/readyz")
        assert answer.status == (200 if ready else 503)
        assert "X-Holdfast-Leader" in answer.headers
        if not ready:
            error = (await answer.json())["error"]
            assert (error["code"], error["outcome"]) == ("not_ready", "retry")
            assert error["message"] == host.reason or phase in ("starting", "stopping", "stopped")

    with_client(host, scenario, phase=phase)


def test_before_the_start_the_cluster_is_not_asked() -> None:
    async def scenario(client: Client) -> None:
        answer = await client.get("/api/v1/cluster")
        assert answer.status == 503
        assert (await answer.json())["error"]["outcome"] == "retry"
        assert answer.headers["X-Holdfast-Revision"] == "0"
        assert answer.headers["X-Holdfast-Leader"] == ""

    with_client(ScriptedHost(), scenario, phase="starting")


# --- forwarding -----------------------------------------------------------------------------------------------------


def follower_of(address: str) -> ScriptedHost:
    members = [ScriptedMember("n1"), ScriptedMember("n2", role="leader", http=address)]
    return ScriptedHost(leader="n2", members=members)


def test_a_follower_forwards_to_the_leader_once() -> None:
    leader_host = ScriptedHost(node_id="n2", leader="n2", outcome=Denied("member_exists", "m"))

    async def run() -> None:
        async with serving(leader_host) as leader:
            follower_host = follower_of(f"{leader.host}:{leader.port}")
            async with serving(follower_host) as follower:
                answer = await follower.post("/api/v1/cluster/members?timeout_ms=700", json=MEMBER)
                assert answer.status == 409
                assert (await answer.json())["error"]["code"] == "member_exists"
                assert follower_host.calls == []
                # The snapshot is the asked node's own.
                assert (await follower.post("/api/v1/cluster/snapshot")).status == 200
                assert follower_host.calls == [("snapshot", about(30.0))]

    asyncio.run(run())
    assert [call[0] for call in leader_host.calls] == ["add_member"]
    assert leader_host.calls[0][2] == about(0.7)


def test_a_follower_forwards_what_names_its_host_in_the_first_line_as_well() -> None:
    """As whoever takes it for a proxy asks. It is answered by a node of this cluster, whatever host is named."""
    leader_host = ScriptedHost(node_id="n2", leader="n2")

    async def run() -> None:
        async with serving(leader_host) as leader, serving(follower_of(f"{leader.host}:{leader.port}")) as follower:
            for host in (f"{follower.host}:{follower.port}", "elsewhere.invalid"):
                reader, writer = await asyncio.open_connection(follower.host, follower.port)
                first = f"POST http://{host}/api/v1/cluster/transfer?timeout_ms=700 HTTP/1.1"
                writer.write(f"{first}\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
                writer.close()

    asyncio.run(run())
    assert leader_host.calls == [("transfer", None, about(0.7))] * 2


def test_two_nodes_that_take_each_other_for_the_leader_do_not_loop() -> None:
    async def run() -> None:
        one, two = follower_of("-"), ScriptedHost(node_id="n2", leader="n1")
        async with serving(one) as first, serving(two) as second:
            one.members[1].http = f"{second.host}:{second.port}"
            two.members[0].http = f"{first.host}:{first.port}"
            answer = await first.post("/api/v1/cluster/transfer")
            assert answer.status == 503
            error = (await answer.json())["error"]
            assert (error["code"], error["outcome"]) == ("not_leader", "retry")

    asyncio.run(run())


def test_a_leader_out_of_reach_means_retry() -> None:
    async def scenario(client: Client) -> None:
        answer = await client.post("/api/v1/cluster/transfer")
        assert answer.status == 503
        assert (await answer.json())["error"]["outcome"] == "retry"

    with_client(follower_of("127.0.0.1:1"), scenario)


def test_a_leader_lost_after_sending_means_unknown() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with serving(follower_of(f"127.0.0.1:{port}")) as client:
                answer = await client.post("/api/v1/cluster/transfer")
                assert answer.status == 503
                assert (await answer.json())["error"]["outcome"] == "unknown"

    asyncio.run(run())


FOREIGN = {
    "a page": b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nhello",
    "nothing": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello",
    "no msgpack": b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nContent-Length: 1\r\n\r\n\xc1",
    "no document": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]",
    "another error": b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    "no end": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b" " * (5 << 20),
}


@pytest.mark.parametrize("said", FOREIGN.values(), ids=FOREIGN)
def test_what_no_node_says_is_not_passed_on(said: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with serving(follower_of(f"127.0.0.1:{port}")) as client:
                answer = await client.get("/api/v1/cluster/members/n2")
                error = (await answer.json())["error"]
                assert (answer.status, error["code"], error["outcome"]) == (503, "no_answer", "retry")
                answer = await client.post("/api/v1/cluster/transfer")
                error = (await answer.json())["error"]
                # It may have come through to a leader behind whatever answered.
                assert (answer.status, error["code"], error["outcome"]) == (503, "leader_lost", "unknown")

    asyncio.run(run())


def test_no_leader_means_retry() -> None:
    async def scenario(client: Client) -> None:
        answer = await client.post("/api/v1/cluster/transfer")
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "no_leader"

    with_client(ScriptedHost(leader=None), scenario)
