"""Heads of HTTP requests, as the quick way reads them: what it takes, aiohttp takes, and for the same request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aiohttp.http_parser import HttpRequestParserPy, RawRequestMessage

from coordinator.http.app import all_operations
from coordinator.http.whole import HEAD_MOST, Answers, Head, read_head


class Misread(AssertionError):
    """The two readers disagree about a request: one of them would let something in that the other would not."""


class NotPlain(Exception):
    """It is left to aiohttp, which refuses it or not."""


class Heads:
    def __init__(self) -> None:
        self._answers = Answers({(each.method, each.path): _answer for each in all_operations()})
        self._protocol: Any = _Protocol()
        # A body has a place in a loop; nobody waits for one here.
        self._loop: Any = SimpleNamespace(get_debug=lambda: False)

    def __call__(self, raw: bytes) -> None:
        self.compare(self.head(raw[:HEAD_MOST]), raw[:HEAD_MOST])

    def head(self, raw: bytes) -> Head:
        head = read_head(raw, self._answers)
        if head is None:
            raise NotPlain
        return head

    def compare(self, head: Head, raw: bytes) -> None:
        parser = HttpRequestParserPy(self._protocol, self._loop, 1 << 16)
        messages, _, _ = parser.feed_data(raw + b"\r\n")
        seen: list[RawRequestMessage] = [message for message, _ in messages]
        if len(seen) != 1:
            raise Misread(f"{len(seen)} requests to aiohttp")
        (other,) = seen
        theirs = (other.method, other.path, sorted((name.lower(), value) for name, value in other.headers.items()))
        ours = (
            head.method,
            head.raw_path,
            sorted((name.lower(), value) for name, value in head.fields.headers.items()),
        )
        if theirs != ours or other.should_close or other.upgrade or other.chunked or other.compression:
            raise Misread(f"{ours} is to aiohttp {other}")


class _Protocol:
    """What the parser tells of a body, which is not looked at here."""

    _reading_paused = False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def _answer(_: object) -> Any:
    raise NotImplementedError


def heads() -> list[bytes]:
    plain = ["Host: 127.0.0.1:7101", "User-Agent: curl/7.88.1", "Accept: */*"]
    body = ["Content-Type: application/json; charset=utf-8", "Content-Length: 96", "Connection: keep-alive"]
    token = ["Authorization: Bearer hf_0123456789abcdef_aGVsbG8", "X-Holdfast-Client: worker-1"]
    return [
        _head("POST", "/api/v1/locks/acquire", [*plain, *body]),
        _head("POST", "/api/v1/heartbeats", [*plain, *token, "Content-Type: application/msgpack", "Content-Length: 8"]),
        _head("GET", "/api/v1/locks?prefix=a&limit=10&consistency=local", [*plain, *token]),
        _head("GET", "/api/v1/cluster", [*plain, "Accept-Encoding: gzip, deflate", "Cookie: a=b"]),
        _head("PUT", "/api/v1/edges", [*plain, *body, "Idempotency-Key: 7", "Expect: 100-continue"]),
        _head("POST", "/api/v1/sessions/0000000100000000/heartbeat", [*plain, *body]),
        _head("GET", "/api/v1/leases/0000000100000000?consistency=bounded&max_staleness_ms=100", plain),
        _head("POST", "/api/v1/sessions", [*plain, "Transfer-Encoding: chunked", "Connection: close"]),
    ]


def _head(method: str, path: str, fields: list[str]) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", *fields, ""]).encode()
