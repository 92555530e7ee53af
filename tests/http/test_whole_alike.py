"""Whatever bytes come, in whatever pieces: connections that answer themselves what came whole answer as aiohttp does,
and the state is the same afterwards."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.http.telemetry import document
from tests.http.served import ACQUIRE, HELD, LOCKS, Served, served
from tests.http.wires import Caller

RELEASE, BEAT = "/api/v1/locks/release", "/api/v1/heartbeats"
_HEAD = re.compile(rb"(HTTP/\d\.\d [^\r]*\r\n)((?:[^\r]+\r\n)+)\r\n")
_MOMENT = re.compile(rb'expires_at_epoch_ms(": \d+|\xcf.{8})', re.DOTALL)
_NEXT = b"--- an answer ---"
_NOT_HTTP = re.compile(rb"HTTP/1\.0 4.*(not a valid HTTP request|head_too_large)", re.DOTALL)

# --- what is said -----------------------------------------------------------------------------------------------------


ODD: dict[str, list[Any]] = {}
"""Of each part of a request, what is not of the plainest kind, or not everywhere."""


def mostly(plain: list[Any], odd: list[Any], part: str = "") -> st.SearchStrategy[Any]:
    if part:
        ODD[part] = odd
    return st.integers(0, 23).flatmap(lambda luck: st.sampled_from(odd if luck == 23 else plain))


METHODS = mostly(["POST", "POST", "GET"], ["HEAD", "PUT", "OPTIONS", "CONNECT", "post", "P\u00d6ST", ""], "method")
TARGETS = mostly(
    [
        ACQUIRE, ACQUIRE, RELEASE, BEAT, LOCKS, f"{LOCKS}?limit=2", f"{ACQUIRE}?timeout_ms=9000", "/healthz",
        f"{LOCKS}/k", "/api/v1/leases/0000000100000000", "/api/v1/sessions/0000000100000000/heartbeat",
        "/api/v1/queues/q", "/api/v1/queues/q/tasks/0000000100000000", "/api/v1/resources/a/b/explain",
    ],
    [
        f"{ACQUIRE}?timeout_ms=9000&timeout_ms=9000", f"{ACQUIRE}?", f"{ACQUIRE}?a", f"{ACQUIRE}/", f"/{ACQUIRE}",
        f"{LOCKS}/acquire", f"{LOCKS}/a%2Fb", f"{LOCKS}/", f"{LOCKS}//k", f"{LOCKS}/k/", "/api/v1/queues//tasks",
        "/api/v1/leases/renew", "/api/v1/leases/1/", "/api/v1/queues/q/tasks/1/2", "/api/v1/namespaces/n",
        f"{LOCKS}?prefix=%zz", f"{LOCKS}?prefix=a+b",
        f"{ACQUIRE}#x", f"http://x{ACQUIRE}", "http://y/healthz", "*", "/nowhere", "/api/v1/./locks",
        "/api/v1/locks/../locks/acquire", "x", "", f"{LOCKS}?prefix=\u00e9",
        "/readyz", "/metrics/", f"{LOCKS}?consistency=local", f"{LOCKS}?limit=0",
    ],
    "target",
)  # fmt: skip
VERSIONS = mostly(
    [" HTTP/1.1"], [" HTTP/1.0", " HTTP/2.0", " HTTP/1.12", "", "  HTTP/1.1", " http/1.1", "\tHTTP/1.1"], "version"
)
HOSTS = mostly([["Host: x"]], [[], ["Host: x", "Host: y"], ["host: x"], ["Host:"], ["Host: x "], ["Host:x"]], "host")
HEADERS = st.lists(
    mostly(
        [
            "Accept: */*", "User-Agent: test", "Content-Type: application/json", "Connection: keep-alive",
            "X-Holdfast-Namespace: default", "Idempotency-Key: one", "accept: application/msgpack",
            "Content-Type: application/json; charset=utf-8", "X-Other: a, b;c=d", "Accept-Encoding: gzip, deflate",
        ],
        [
            "Connection: close", "Connection: keep-alive, close", "connection: Close", "Proxy-Connection: close",
            "Connection: Upgrade", "Upgrade: websocket", "Upgrade: h2c", "HTTP2-Settings: AA", "Keep-Alive: timeout=1",
            "Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding : chunked", "TE: trailers", "Trailer: X", "Expect: 100-continue", "Expect: x",
            "Content-Encoding: gzip", "Content-Encoding: identity", "X-Odd: \t", "X-Odd:", "X-Odd: a\tb", "X_Odd: b",
            "X-Odd: a\r\n b", " folded: x", "Name : x", ": x", "novalue", "X-Odd: a\nX-More: b", "X-Odd: a\rb",
            "X-Odd: \x00", "X-Odd: \x7f", "X-Odd: \u00e9", "Content-Length: 0", "Content-Length: 7",
            "Origin: https://evil.example", "X-Holdfast-Namespace: nowhere", "X-Holdfast-Namespace: default",
            "Sec-WebSocket-Key1: x", "Content-Type: text/plain; charset=latin-1", "Content-Type: text/csv",
            "Content-Type: application/msgpack", "Content-Type: application/x-holdfast-leases", "Content-Type: JSON",
            "X-Holdfast-Client: c", "X-Holdfast-Extend-Ms: 5000", "\r\nX-Odd: x",
            "\r\n".join(f"X-{number}: x" for number in range(70)), "X-Long: " + "x" * 2_000, "X-Long: " + "x" * 9_000,
        ],
        "header",
    ),
    max_size=5,
)  # fmt: skip
BODIES = st.one_of(
    st.sampled_from([
        {**HELD}, {**HELD, "lock_key": "l"}, {**HELD, "client_id": "d"}, {**HELD, "lock": 1},
        {**HELD, "request_id": "two"}, {"lock_key": "k", "client_id": "c", "fencing_token": 1},
        {"client_id": "c", "lease_ids": ["1"]}, {},
    ]).map(lambda said: json.dumps(said).encode()),
    mostly([b""], [b"{", b"\xff", b"\r\n", b"0\r\n\r\n", b"\0" * 8, b" " * 70_000, b'{"a": 1, "a": 2}']),
    mostly([b""], [f"POST {ACQUIRE} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()]),
)  # fmt: skip
LENGTHS = mostly(
    ["Content-Length: %d"],
    [
        "", "content-length: %d", "Content-Length: 0%d", "Content-Length: +%d", "Content-Length: -%d",
        "Content-Length: 0x%d", "Content-Length: %d, %d", "Content-Length: %d ", "Content-Length:%d",
        "Content-Length: %d\r\nContent-Length: %d", "Content-Length: 1%d", "Content-Length: \u0663",
        "Content-Length : %d", "Content-Length: %d\r\nTransfer-Encoding: chunked",
        "Content-Length: 99999999999999999999",
    ],
    "length",
)  # fmt: skip
ENDS = mostly(["\r\n"], ["\n", "\r", "\r\r\n", "\n\r"], "end")


def said(
    method: str = "POST", target: str = ACQUIRE, version: str = " HTTP/1.1", host: Any = ("Host: x",), header: Any = (),
    length: str = "Content-Length: %d", end: str = "\r\n", body: bytes = json.dumps(HELD).encode(),
) -> bytes:  # fmt: skip
    headers = [*host, *([header] if isinstance(header, str) else header)]
    if length and (body or method != "GET"):
        headers.insert(1, length.replace("%d", str(len(body))))
    return end.join([f"{method} {target}{version}", *headers, "", ""]).encode() + body


@st.composite
def requests(draw: Any) -> bytes:
    headers = draw(st.permutations([*draw(HOSTS), *draw(HEADERS)]))
    return said(
        draw(METHODS), draw(TARGETS), draw(VERSIONS), headers, (), draw(LENGTHS), draw(ENDS), draw(BODIES)
    )  # fmt: skip


@st.composite
def talks(draw: Any) -> list[tuple[bytes, int]]:
    """What is read at once, and how long nothing is read after it."""
    talk = b"".join(draw(st.lists(requests(), min_size=1, max_size=4)))
    if draw(st.integers(0, 7)) == 7:
        at = draw(st.integers(0, len(talk)))
        talk = talk[:at] + draw(st.binary(max_size=3)) + talk[at + draw(st.integers(0, 3)) :]
    ends = [at + 4 for at in range(len(talk)) if talk.startswith(b"\r\n\r\n", at)]
    cuts = draw(st.lists(st.integers(0, len(talk)), max_size=3))
    cuts += draw(st.lists(st.sampled_from(ends), max_size=2)) if ends else []
    cuts += [at for at in range(1, len(talk)) if talk.startswith((b"POST /", b"GET /"), at) and draw(st.booleans())]
    bounds = [0, *sorted({*cuts} - {0, len(talk)}), len(talk)]
    return [
        (talk[low:high], draw(st.sampled_from([0, 0, 1, 3, 60])))
        for low, high in pairwise(bounds)
    ]  # fmt: skip


# --- what is answered -------------------------------------------------------------------------------------------------


def shown(answered: bytes) -> list[bytes]:
    """Each answer, without its date, the order of its headers, and the wall clock."""

    def ordered(head: re.Match[bytes]) -> bytes:
        lines = sorted(line for line in head[2].splitlines() if not line.startswith(b"Date: "))
        return _NEXT + head[1] + b"\n".join(lines) + b"\n\n"

    return _MOMENT.sub(b"", _HEAD.sub(ordered, answered)).split(_NEXT)[1:]


Ended = tuple[list[bytes], bool, bytes, Any]
"""Answers, whether it was hung up, the state, and what is counted."""


async def _ended(found: Served, pieces: list[tuple[bytes, int]]) -> Ended:
    found.begin_anew()
    caller = Caller(found)
    answers = shown(await caller.say_all(pieces))
    closed = caller.wire.closed
    caller.hang_up()
    await caller.settle()
    assert caller.connection._answering is None
    assert found.view.service is not None
    return answers, closed, found.host.replica.machine.digest(), document(found.view.service)


async def _compared(ours: Served, theirs: Served, pieces: list[tuple[bytes, int]]) -> None:
    answers, *effect = await _ended(ours, pieces)
    expected, *expected_effect = await _ended(theirs, pieces)
    assert theirs.whole == 0
    if answers != expected and any(_NOT_HTTP.match(each[-1]) for each in (answers, expected) if each):
        # Of what it reads at once, aiohttp forgets what is in front of something that is no HTTP, or behind the last
        # request. What it reads at once is less here, or more: of those in front, the first ones are answered.
        each = [(piece[at : at + 1], 0) for piece, _ in pieces for at in range(len(piece))]
        expected, *_ = await _ended(theirs, each)
        in_front = [each for each in answers if not _NOT_HTTP.match(each)]
        assert in_front == expected[: len(in_front)]
        assert len(answers) <= len(in_front) + 1
        return
    assert answers == expected
    assert effect == expected_effect


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """One loop and one of each kind for all that is tried: each try has a state of its own."""
    with asyncio.Runner() as runner:
        kept = AsyncExitStack()

        async def begin() -> list[Served]:
            return [await kept.enter_async_context(served(whole=whole)) for whole in (True, False)]

        ours, theirs = runner.run(begin())
        yield Pair(runner, ours, theirs)
        runner.run(kept.aclose())


@dataclass
class Pair:
    runner: asyncio.Runner
    ours: Served
    theirs: Served
    here: list[int] = field(default_factory=list)
    """How many requests of each talk were answered by their connection."""

    def compare(self, pieces: list[tuple[bytes, int]]) -> None:
        self.runner.run(_compared(self.ours, self.theirs, pieces))
        self.here.append(self.ours.whole)


def test_the_same_bytes_have_the_same_answers_and_the_same_effect(pair: Pair) -> None:
    @settings(max_examples=300, deadline=None)
    @given(talks())
    def tried(pieces: list[tuple[bytes, int]]) -> None:
        pair.compare(pieces)

    pair.here.clear()
    tried()
    # The comparison would be worth nothing if all of it were aiohttp's.
    assert sum(map(bool, pair.here)) >= len(pair.here) // 10, pair.here


@pytest.mark.parametrize("part", sorted(ODD))
def test_each_odd_thing_alone_between_plain_ones(pair: Pair, part: str) -> None:
    """Read at once, each for itself, and cut behind the odd one's head."""
    for odd in ODD[part]:
        asked = [said(), said(**{part: odd}), said(target=LOCKS, method="GET", body=b"")]
        if part == "header" and "Connection: Upgrade" in odd:
            asked[1] = said(header=[odd, "Upgrade: websocket"])
        end = asked[1].find(b"\r\n\r\n") + 4
        pair.compare([(b"".join(asked), 0)])
        pair.compare([(each, 60) for each in asked])
        pair.compare([(asked[0], 0), (asked[1][:end], 1), (asked[1][end:], 0), (asked[2], 0)])


def test_other_forms_of_a_body(pair: Pair) -> None:
    packed = ("X-Holdfast-Client: c", "X-Holdfast-Extend-Ms: 5000", "Content-Type: application/x-holdfast-leases")
    beat = {"client_id": "c", "lease_ids": ["0000000100000000"], "extend_duration_ms": 5_000}
    msgpacked = ("Content-Type: application/msgpack", "Accept: application/msgpack")
    for each in (
        said(target=BEAT, header=packed, body=(1 << 32).to_bytes(8, "little") * 2),
        said(target=BEAT, header=packed, body=b"123"),
        said(target=BEAT, header=packed[:1] + packed[2:], body=bytes(8)),
        said(target=BEAT, header=msgpacked, body=msgpack.packb(beat)),
        said(target=BEAT, body=json.dumps(beat).encode()),
        said(header=msgpacked, body=msgpack.packb(HELD)),
        said(header=msgpacked, body=b"\xc1"),
        said(header="Accept: text/html, application/msgpack;q=0.9"),
    ):
        pair.here.clear()
        pair.compare([(said(), 0), (each, 60), (each, 0)])
        assert pair.here == [3]
