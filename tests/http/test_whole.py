"""Requests that came whole: the same answers as by aiohttp, in the same order, and nothing taken that may mean more."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from coordinator.http.whole import BODY_MOST, Answers, read_head, written
from tests.http.served import ACQUIRE, HELD, LOCKS, parsed, post, run, served, waiting
from tests.waiting import until

# --- the same answers -------------------------------------------------------------------------------------------------

SAID = [
    post(ACQUIRE, HELD),
    post(f"{ACQUIRE}?timeout_ms=9000", HELD, "Content-Type: application/json; charset=utf-8"),
    post(f"{ACQUIRE}?timeout_ms=1", HELD),
    post(f"{ACQUIRE}?timeout=1", HELD),
    post(ACQUIRE, {**HELD, "lock": 1}),
    post(ACQUIRE, {**HELD, "client_id": "another"}),
    post(ACQUIRE, b"{"),
    post(ACQUIRE, b""),
    post(ACQUIRE, b"\xff"),
    post(ACQUIRE, HELD, "Content-Type: text/csv"),
    post(ACQUIRE, HELD, "X-Holdfast-Namespace: nowhere"),
    post(ACQUIRE, HELD, "x-holdfast-namespace: default", "IDEMPOTENCY-KEY: one"),
    post(ACQUIRE, {**HELD, "request_id": "two"}, "Idempotency-Key: one"),
    post(ACQUIRE, HELD, "Origin: https://evil.example"),
    post(ACQUIRE, HELD, "Accept: application/msgpack"),
    post("/api/v1/locks/release", {"lock_key": "k", "client_id": "c", "fencing_token": 99}),
    f"GET {LOCKS}?limit=2 HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    f"GET {LOCKS}?limit=2&limit=2 HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    f"GET {LOCKS}?prefix=a%20b HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    f"PUT {LOCKS} HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /api/v1/telemetry/nothing HTTP/1.1\r\nHost: x\r\n\r\n",
]


def test_a_request_is_answered_alike_whether_it_came_whole_or_not() -> None:
    async def scenario() -> None:
        async with served() as one, served(whole=False) as other:
            for said in SAID:
                answers = [parsed(await each.ask(said)) for each in (one, other)]
                for status, headers, _ in (answer[0] for answer in answers):
                    assert headers.pop("server") == "holdfast", (said, status)
                (ours, headers, body), (theirs, their_headers, their_body) = (answer[0] for answer in answers)
                assert (ours, headers.keys()) == (theirs, their_headers.keys()), said
                assert headers["content-type"] == their_headers["content-type"], said
                if headers["content-type"].startswith("application/json"):
                    assert _timeless(json.loads(body)) == _timeless(json.loads(their_body)), said
            assert one.whole > len(SAID) // 2
            assert other.whole == 0

    run(scenario)


def _timeless(body: Any) -> Any:
    if isinstance(body, dict):
        return {name: _timeless(value) for name, value in body.items() if name != "expires_at_epoch_ms"}
    return [_timeless(each) for each in body] if isinstance(body, list) else body


# --- what is taken ----------------------------------------------------------------------------------------------------


async def _no_answer(_: Any) -> Any:
    raise AssertionError("nobody asks")


def head_of(*lines: str, first: str = f"POST {ACQUIRE} HTTP/1.1", host: str = "Host: x") -> bytes:
    return "".join(f"{line}\r\n" for line in (first, host, *lines) if line).encode(errors="surrogateescape")


@pytest.mark.parametrize(
    "raw",
    [
        head_of("Transfer-Encoding: chunked"),
        head_of("Content-Length: 3", "Transfer-Encoding: identity"),
        head_of("Content-Length: 3", "content-length: 3"),
        head_of("Content-Length: +3"),
        head_of("Content-Length: 3, 3"),
        head_of("Content-Length: 1000000"),
        head_of("Content-Length: ٣"),
        head_of("Content-Encoding: gzip"),
        head_of("Expect: 100-continue"),
        head_of("Connection: Upgrade", "Upgrade: websocket"),
        head_of("Connection: close"),
        head_of("Host: y"),
        head_of(host=""),
        head_of(" folded: x"),
        head_of("Name : x"),
        head_of("Name:"),
        head_of("Name: \x00"),
        head_of("Name: a\rb"),
        head_of("Name: a\nContent-Length: 3"),
        head_of("Näme: x"),
        head_of("Content-Type: text/plain; charset=latin-1"),
        head_of(first=f"POST {ACQUIRE} HTTP/1.0"),
        head_of(first=f"POST  {ACQUIRE} HTTP/1.1"),
        head_of(first=f"POST http://x{ACQUIRE} HTTP/1.1"),
        head_of(first=f"POST {ACQUIRE}? HTTP/1.1"),
        head_of(first=f"POST {ACQUIRE}?a HTTP/1.1"),
        head_of(first=f"POST {ACQUIRE}?a=1&a=1 HTTP/1.1"),
        head_of(first=f"POST {ACQUIRE}?a=%31 HTTP/1.1"),
        head_of(first=f"POST {ACQUIRE}?a=+ HTTP/1.1"),
        head_of(first=f"POST {ACQUIRE}#a HTTP/1.1"),
        head_of(first=f"POST {ACQUIRE}/ HTTP/1.1"),
        head_of(first=f"post {ACQUIRE} HTTP/1.1"),
        head_of(first=f"HEAD {ACQUIRE} HTTP/1.1"),
        b"\r\n" + head_of(),
        head_of()[:-2],
        b"",
    ],
)
def test_what_may_mean_something_else_is_left_to_aiohttp(raw: bytes) -> None:
    answers = Answers({("POST", ACQUIRE): _no_answer})
    assert read_head(head_of("Content-Length: 3", "Connection: Keep-Alive"), answers) is not None
    assert read_head(raw, answers) is None


@pytest.mark.parametrize(
    ("asked", "path", "places"),
    [
        ("GET /api/v1/locks", "/api/v1/locks", {}),
        ("GET /api/v1/locks/acquire", "/api/v1/locks/{key:.+}", {"key": "acquire"}),
        ("GET /api/v1/locks/a/b/", "/api/v1/locks/{key:.+}", {"key": "a/b/"}),
        ("POST /api/v1/locks/acquire", "/api/v1/locks/acquire", {}),
        ("POST /api/v1/sessions/ab/heartbeat", "/api/v1/sessions/{id}/heartbeat", {"id": "ab"}),
        ("GET /api/v1/resources/a/b/explain", "/api/v1/resources/{id:.+}/explain", {"id": "a/b"}),
        ("GET /api/v1/resources/a/explain/b", "/api/v1/resources/{id:.+}", {"id": "a/explain/b"}),
        ("POST /api/v1/sessions//heartbeat", None, {}),
        ("POST /api/v1/sessions/a/b/heartbeat", None, {}),
        ("POST /api/v1/sessions/ab/heartbeat/", None, {}),
        ("PUT /api/v1/sessions/ab/heartbeat", None, {}),
        ("GET /api/v1/locks/", None, {}),
    ],
)
def test_what_stands_in_a_path_for_names(asked: str, path: str | None, places: dict[str, str]) -> None:
    async def found(_: Any) -> Any: ...

    paths = [
        ("POST", "/api/v1/locks/acquire"), ("GET", "/api/v1/locks"), ("GET", "/api/v1/locks/{key:.+}"),
        ("POST", "/api/v1/sessions/{id}/heartbeat"), ("GET", "/api/v1/resources/{id:.+}/explain"),
        ("GET", "/api/v1/resources/{id:.+}"),
    ]  # fmt: skip
    answers = Answers(dict.fromkeys(paths, _no_answer))
    if path is not None:
        answers[asked.split(maxsplit=1)[0], path] = found
    head = read_head(head_of(first=f"{asked} HTTP/1.1"), answers)
    assert (None if head is None else (head.answer, head.places)) == (None if path is None else (found, places))


def test_an_answer_has_no_line_break_in_a_header() -> None:
    from aiohttp import web

    answer = web.Response(body=b"x")
    answer.headers["X"] = "a"
    assert written(answer).endswith(b"\r\n\r\nx")
    answer.headers["X"] = "a\r\nSet-Cookie: b"
    with pytest.raises(ValueError, match="line break"):
        written(answer)


# --- order and pieces -------------------------------------------------------------------------------------------------


def names_of(raw: bytes) -> list[str]:
    """Which lock each answer is about; the status of what is about none."""
    return [json.loads(body).get("lock_key", str(status)) for status, _, body in parsed(raw)]


def test_answers_come_in_the_order_of_the_requests_however_they_came() -> None:
    """Mixed kinds in one write, one after the other, and in pieces: those behind wait for those before."""

    def lock(key: str, *headers: str) -> bytes:
        return post(ACQUIRE, {**HELD, "lock_key": key}, *headers)

    odd = "X-Odd: \t"  # left to aiohttp

    async def scenario() -> None:
        async with served() as found:
            found.host.gate = asyncio.Event()
            reader, writer = await found.dial()
            writer.write(lock("a"))
            await until(lambda: len(found.host.proposed) == 1, "the first request")
            said = lock("b") + lock("c", odd) + lock("d")
            for at in range(0, len(said), 50):
                writer.write(said[at : at + 50])
                await writer.drain()
            await asyncio.sleep(0)
            assert len(found.host.proposed) == 1
            found.host.gate.set()
            answered = b""
            while answered.count(b"HTTP/1.1") < 4 or not answered.endswith(b"}\n"):
                answered += await reader.read(65_536)
            assert names_of(answered) == ["a", "b", "c", "d"]
            writer.close()
            assert names_of(await found.say(lock("e") + lock("f"), lock("g", odd), lock("h"))) == [*"efgh", "200"]

    run(scenario)


def test_a_body_that_comes_behind_its_head_is_still_whole() -> None:
    async def scenario() -> None:
        async with served() as found:
            said = post(ACQUIRE, HELD)
            end = said.index(b"\r\n\r\n") + 4
            reader, writer = await found.dial()
            for turn in range(1, 4):
                writer.write(said[:end])
                await until(lambda: any(each._behind for each in found.connections), "the head")
                writer.write(said[end:])
                assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 200")
                assert found.whole == turn
            writer.close()

    run(scenario)


def test_a_body_in_many_pieces_or_a_large_one_is_left_to_aiohttp() -> None:
    async def scenario() -> None:
        async with served() as found:
            said = post(ACQUIRE, HELD)
            reader, writer = await found.dial()
            for at in range(len(said)):
                writer.write(said[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0)
            assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 200")
            assert found.whole == 0
            writer.close()
            large = post(ACQUIRE, json.dumps(HELD).encode() + b" " * BODY_MOST)
            (status, _, _), *_ = parsed(await found.say(large))
            assert (status, found.whole) == (200, 0)

    run(scenario)


def test_behind_what_aiohttp_ends_the_connection_after_nothing_is_read() -> None:
    async def scenario() -> None:
        async with served() as found:
            for bad in (b"NOT HTTP\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"):
                reader, writer = await found.dial()
                writer.write(bad)
                writer.write(post(ACQUIRE, HELD))
                assert [status for status, _, _ in parsed(await reader.read())] == [400]
                writer.close()
            assert found.whole == 0
            assert not found.host.proposed

    run(scenario)


def test_a_request_inside_the_body_of_another_is_a_body() -> None:
    async def scenario() -> None:
        async with served() as found:
            inner = post(ACQUIRE, HELD)
            outer = post("/api/v1/nowhere", inner)
            end = outer.index(b"\r\n\r\n") + 4
            for pieces in ((outer,), (outer[:end], outer[end:])):
                assert [status for status, _, _ in parsed(await found.say(*pieces))] == [404, 200]
            reader, writer = await found.dial()
            writer.write(b"\r\n\r\n" + outer[:end])
            assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 404")
            writer.write(inner)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await reader.read()
            writer.close()
            assert not found.host.proposed

    run(scenario)


# --- how long -------------------------------------------------------------------------------------------------------


def test_one_that_waits_is_not_idle_and_one_that_was_answered_is() -> None:
    async def scenario() -> None:
        async with served(idle_seconds=0.1, header_seconds=0.1) as found:
            await found.say(post(ACQUIRE, HELD))
            reader, writer = await found.dial()
            writer.write(waiting())
            machine = found.host.replica.machine
            await until(lambda: machine.counts().waiters == 1, "one that waits")
            (connection,) = found.connections
            connection.look(asyncio.get_running_loop().time() + 3_600)
            connection._process_keepalive()
            released = {"lock_key": "k", "client_id": "c", "fencing_token": 1}
            await found.say(post("/api/v1/locks/release", released))
            assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 200")
            assert await reader.read() == b""
            writer.close()

    run(scenario)


def test_a_server_that_stops_waits_for_what_it_answers() -> None:
    async def scenario() -> None:
        async with served() as found:
            found.host.gate = asyncio.Event()
            reader, writer = await found.dial()
            writer.write(post(ACQUIRE, HELD))
            await until(lambda: len(found.host.proposed) == 1, "the request")
            stopping = asyncio.ensure_future(found.server.stop())
            await until(lambda: all(each._ending for each in found.connections), "a server that stops")
            found.host.gate.set()
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            await stopping
            writer.close()

    run(scenario)
