"""The bounds of the HTTP port, on a real node: each refusal is quick, has the one error shape, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from coordinator.clientlimits import BODY_BYTES, BODY_DEPTH, BODY_OBJECTS, HEADER_BYTES, HEADERS, LINE_BYTES
from coordinator.machine.levels import LEVEL
from coordinator.machine.limits import MAX_NAME_CHARACTERS
from tests.security.lone_node import LoneNode, lone_node, read_all, refusal
from tests.waiting import wait_until

SLOW = 1_000
HALF_OPEN = 64
"""What the peer port lets in unproven."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    bounds = 'header_seconds = 1.0\nbody_seconds = 0.5\nidle_seconds = 3.0\norigins = "https://ops.example.org"\n'
    with lone_node(tmp_path_factory.mktemp("limits"), bounds) as running:
        yield running


def say(node: LoneNode, raw: bytes) -> tuple[int, dict[str, Any]]:
    with node.dial() as connection:
        connection.sendall(raw)
        return refusal(read_all(connection))


def test_a_thousand_slow_clients_take_nothing_from_others(node: LoneNode) -> None:
    before = node.descriptors()
    with contextlib.ExitStack() as held:
        slow = [held.enter_context(node.dial()) for _ in range(SLOW)]
        for number, each in enumerate(slow):
            each.sendall(b"POST /api/v1/locks/acquire HTTP/1.1\r\nHost: x\r\nX-Slow: "[: 10 + number % 16])
        # They go on dripping, and are cut off all the same, with the reason; the first ones may have been by now.
        for each in slow[-50:]:
            each.sendall(b"a")
        assert node.acquire("among the slow")[0] == 200
        told = [read_all(each) for each in slow]
    assert {refusal(raw)[0] for raw in told} == {408}
    assert {refusal(raw)[1]["code"] for raw in told} == {"slow_request"}
    wait_until(lambda: node.descriptors() <= before + 5, 90, "their descriptors back")
    assert node.acquire("after the slow")[0] == 200


def test_a_client_that_says_nothing_is_hung_up_on(node: LoneNode) -> None:
    with node.dial() as silent, node.dial() as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
        assert read_all(silent) == b""
        assert read_all(idle) == b""


def test_a_body_that_does_not_come_is_not_waited_for(node: LoneNode) -> None:
    head = b"POST /api/v1/locks/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    status, error = say(node, head)
    assert (status, error["code"], error["outcome"]) == (408, "slow_request", "retry")


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),
        (b"NOT HTTP AT ALL\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "bad_request"),
        (b"GET /" + b"a" * LINE_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * (HEADER_BYTES + 1) + b"\r\n\r\n", 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (HEADERS + 1) + b"\r\n", 400, "bad_request"),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + (b"A: " + b"a" * 8_000 + b"\r\n") * 9 + b"\r\n",
            431,
            "head_too_large",
        ),
        (
            b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nno gzip..",
            404,
            "not_found",
        ),
    ],
)
def test_what_is_no_request_gets_the_one_error_shape(node: LoneNode, raw: bytes, status: int, code: str) -> None:
    answered, error = say(node, raw)
    assert (answered, error["code"], error["outcome"]) == (status, code, "denied")
    assert "Traceback" not in node.log
    assert "Error handling request" not in node.log


def test_a_large_body_is_not_taken_for_a_head(node: LoneNode) -> None:
    """Also where it comes while the answer before it is held back, or where nobody reads it."""
    assert node.ask("PUT", "/api/v1/namespaces/held", {"requests_per_s": 1})[0] == 200
    listing = b"GET /api/v1/locks HTTP/1.1\r\nHost: x\r\nX-Holdfast-Namespace: held\r\n\r\n"
    batch = {
        "resource_ids": [f"{number:0200}" for number in range(1_000)],
        "client_id": "c",
        "lease_duration_ms": 1_000,
    }
    body = json.dumps(batch).encode()
    head = b"POST /api/v1/leases/acquire-batch HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
    with node.dial() as connection:
        connection.sendall(listing * 2)
        told = b""
        while b"rate_limited" not in told:
            told += connection.recv(65_536)
        connection.sendall(head + b"%d\r\n\r\n" % len(body) + body)
        assert read_all(connection).startswith(b"HTTP/1.1 200")
    with node.dial() as connection:
        connection.sendall(head + b"%d\r\n\r\n" % (BODY_BYTES + 1) + bytes(300_000))
        told = read_all(connection)
    assert (refusal(told)[0], told.count(b"HTTP/1.1")) == (413, 1)


def test_a_slow_head_is_noticed_behind_a_body_that_nobody_read(node: LoneNode) -> None:
    with node.dial() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 404")
        connection.sendall(b"GET /heal")
        assert refusal(read_all(connection))[1]["code"] == "slow_request"


def test_the_head_behind_a_request_that_waits_has_time(node: LoneNode) -> None:
    """Its refusal would be taken for the answer to the one that waits."""
    assert node.acquire("waited-for")[0] == 200
    asked = {"lock_key": "waited-for", "client_id": "d", "lease_time_ms": 1_000, "block_time_ms": 4_000}
    body = json.dumps(asked).encode()
    with node.dial() as connection:
        connection.sendall(b"POST /api/v1/locks/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
        connection.sendall(body)
        wait_until(lambda: node.ask("GET", "/api/v1/locks/waited-for")[2]["queue_length"] == 1, 90, "one that waits")
        connection.sendall(b"GET /hea")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 409")
        connection.sendall(b"lthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_a_stream_of_events_is_no_answer_to_head(node: LoneNode) -> None:
    with node.dial() as connection:
        accepted = b"Accept: text/event-stream\r\nConnection: close\r\n"
        connection.sendall(b"HEAD /api/v1/watch HTTP/1.1\r\nHost: x\r\n" + accepted + b"\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 405")


def test_a_page_of_another_site_changes_nothing(node: LoneNode) -> None:
    def asked(origin: str, **more: str) -> int:
        body = {"lock_key": f"from {origin}", "client_id": "c", "lease_time_ms": 1_000}
        return node.ask("POST", "/api/v1/locks/acquire", body, {"Origin": origin, **more})[0]

    strangers = ("https://evil.example", "null", "http://127.0.0.1:1", "http://[", "http://")
    assert [asked(origin) for origin in strangers] == [403] * len(strangers)
    assert [asked("https://ops.example.org"), asked(f"http://127.0.0.1:{node.http_port}")] == [200] * 2
    # Reading is for the browser to refuse, but a WebSocket it lets through.
    assert node.ask("GET", "/api/v1/locks", None, {"Origin": "https://evil.example"})[0] == 200
    upgrade = {"Origin": "https://evil.example", "Upgrade": "websocket", "Connection": "Upgrade"}
    assert node.ask("GET", "/api/v1/watch", None, upgrade)[0] == 403


def test_bodies_of_too_many_parts_are_not_built(node: LoneNode) -> None:
    many = [{}] * (BODY_OBJECTS + 1)
    lists = [[]] * (BODY_OBJECTS + 1)
    raws = json.dumps(many).encode(), json.dumps(lists).encode(), b"[" * (BODY_DEPTH + 1) + b"]" * (BODY_DEPTH + 1)
    for kind, raw in (*(("json", raw) for raw in raws), ("msgpack", msgpack.packb(lists))):
        status, _, answer = node.ask("POST", "/api/v1/locks/acquire", raw, {"Content-Type": f"application/{kind}"})
        assert status == 400
        assert "objects and lists" in answer["error"]["message"]
        assert answer["error"]["details"] == {"field": "body"}


def test_brackets_in_texts_are_no_parts_of_a_body(node: LoneNode) -> None:
    """Nor does a text without an end cost more than reading it once."""
    key = '\\"[' * (MAX_NAME_CHARACTERS // 3)
    body = {"lock_key": key, "client_id": "[" * BODY_DEPTH, "lease_time_ms": 1_000, "request_id": "{" * 100}
    assert node.ask("POST", "/api/v1/locks/acquire", body)[0] == 200
    endless = b'{"lock_key": "' + b'\\"[' * (BODY_BYTES // 256)
    assert node.ask("POST", "/api/v1/locks/acquire", endless)[0] == 400


def test_a_namespace_has_a_rate(node: LoneNode) -> None:
    for name, rate in (("paced", 5), ("shut", 0)):
        assert node.ask("PUT", f"/api/v1/namespaces/{name}", {"requests_per_s": rate})[0] == 200
    answers = [node.acquire(f"k{number}", "paced") for number in range(30)]
    assert answers[0][0] == 200
    refused = [answer for answer in answers if answer[0] == 429]
    assert len(refused) >= 10
    for _, headers, answer in refused:
        assert int(headers["Retry-After"]) >= 1
        assert answer["error"]["code"] == "rate_limited"
        assert answer["error"]["details"] == {"quota": "requests_per_s", "limit": 5}
    assert node.acquire("k", "shut")[0] == 429
    # Others are not held to it; on a busy machine they may be asked to wait for other reasons.
    wait_until(lambda: node.acquire("k", "default")[0] == 200, 60, "a namespace without a rate")


def test_half_open_peers_do_not_keep_others_out(node: LoneNode) -> None:
    with contextlib.ExitStack() as held:
        peers = [held.enter_context(node.dial(node.peer_port)) for _ in range(2 * HALF_OPEN)]
        for each in peers[: HALF_OPEN // 2]:
            each.sendall(b"\x00")
        assert node.acquire("among half-open peers")[0] == 200
        for each in peers:
            each.settimeout(30)
            assert read_all(each) == b""


def test_noise_at_both_ports_changes_nothing(tmp_path: Path) -> None:
    """At a node of which nobody else has asked anything, so that nothing of theirs ends meanwhile."""
    noise = random.Random(7)
    with lone_node(tmp_path) as node:

        def cluster() -> Any:
            return node.ask("GET", "/api/v1/cluster")[2]

        wait_until(lambda: cluster()["level"] == LEVEL, 60, "its level")
        revision, resident = cluster()["members"][0]["applied"], node.resident_kib()
        for port in (node.http_port, node.peer_port):
            for _ in range(40):
                with node.dial(port) as connection, contextlib.suppress(ConnectionError):
                    connection.sendall(noise.randbytes(noise.randrange(1, 40_000)))
                    connection.shutdown(socket.SHUT_WR)
                    read_all(connection)
        assert cluster()["members"][0]["applied"] == revision
        assert node.resident_kib() < 2 * resident
        assert "Traceback" not in node.log


def test_connections_are_bounded_and_descriptors_kept_back(tmp_path: Path) -> None:
    with lone_node(tmp_path, "connections_per_address = 150\n", descriptors=256) as node:
        with contextlib.ExitStack() as held:
            strangers = [held.enter_context(node.dial(node.peer_port)) for _ in range(HALF_OPEN)]
            assert len(strangers) == HALF_OPEN
            crowd = [held.enter_context(node.dial()) for _ in range(400)]
            refused = refusal(read_all(crowd[-1]))
            assert (refused[0], refused[1]["code"], refused[1]["outcome"]) == (503, "too_many_connections", "retry")
            served = crowd[0]
            served.sendall(b"POST /api/v1/cluster/snapshot HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert read_all(served).startswith(b"HTTP/1.1 200")
        wait_until(node.ready, 90, "a node that serves again")
        assert node.acquire("after the crowd")[0] == 200


def test_a_node_without_descriptors_neither_spins_nor_ends(tmp_path: Path) -> None:
    with lone_node(tmp_path, descriptors=96) as node:
        with contextlib.ExitStack() as held:
            for _ in range(HALF_OPEN):
                held.enter_context(node.dial(node.peer_port))
            # So many are let in that clients find fewer descriptors left than there are of them.
            wait_until(lambda: node.descriptors() >= HALF_OPEN, 30, "them to be let in", 0.005)
            waiting = [held.enter_context(node.dial()) for _ in range(48)]
            wait_until(lambda: "http_shortage" in node.log, 90, "a node without descriptors")
            spent = node.cpu_s()
            with pytest.raises(subprocess.TimeoutExpired):
                node.process.wait(timeout=1)
            assert node.cpu_s() - spent < 0.5
            assert len(waiting) == 48
        wait_until(node.ready, 90, "a node that serves again")
        assert node.acquire("after the shortage")[0] == 200
