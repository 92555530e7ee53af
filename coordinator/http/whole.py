"""Requests that came whole: one read has all of it, as of nearly every small one, and it has nothing unusual.

They are answered without aiohttp's machinery for what comes and goes in pieces, which costs more than everything else
that is done for a small request. What is allowed here is part of what aiohttp allows and means the same; whatever is
not, is aiohttp's (`connection`). Both kinds pass the same checks and the same handlers (`app`, `operations`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from coordinator.clientlimits import HEADERS

if TYPE_CHECKING:
    from coordinator.http.connection import Connection

HEAD_MOST = 8 << 10
BODY_MOST = 64 << 10
PIECES_MOST = 4
"""One whose body came a little later than its head is still whole; what comes in more pieces is not."""
HEADS_KEPT = 8
"""Of one connection."""
HEAD_KEPT_MOST = 1 << 10
"""Longer ones are read each time: all connections together could keep too much."""

_HEAD = re.compile(
    rb"([A-Z]+) ((/[A-Za-z0-9/_-]*)(?:\?([A-Za-z0-9_.~:=&-]+))?) HTTP/1\.1\r\n((?:[A-Za-z0-9-]+: [!-~][ -~]*\r\n)+)"
)
_FIELD = re.compile(rb"([^:]+): ([^\r]+)\r\n")
_UNUSUAL = frozenset((
    "transfer-encoding", "content-encoding", "expect", "upgrade", "te", "trailer", "http2-settings", "keep-alive",
    "proxy-connection", "sec-websocket-key1",
))  # fmt: skip
"""Headers after which the rest of a request, or of the connection, may mean something else."""
_TYPE = re.compile("([a-z]+/[a-z0-9.+-]+)(?:; ?charset=utf-8)?")
_LENGTH = re.compile("[0-9]{1,5}")
_NO_TYPE = "application/octet-stream"
_NO_PLACES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Head:
    """All of a request but its body. Of one connection it is mostly the same again and again."""

    method: str
    raw_path: str
    path: str
    query: Mapping[str, str]
    headers: CIMultiDictProxy[str]
    host: str
    content_type: str
    content_length: int | None
    answer: Answer


class Whole:
    """What handlers and checks ask of a request, by aiohttp's names, for one that is here already."""

    __slots__ = (
        "app", "body", "content_length", "content_type", "headers", "host", "match_info", "method", "path", "protocol",
        "query", "raw_path",
    )  # fmt: skip

    def __init__(self, app: web.Application, protocol: Connection, head: Head, body: bytes) -> None:
        self.app = app
        self.protocol = protocol
        self.method = head.method
        self.raw_path = head.raw_path
        self.path = head.path
        self.query = head.query
        self.headers = head.headers
        self.host = head.host
        self.content_type = head.content_type
        self.content_length = head.content_length
        self.match_info = _NO_PLACES
        self.body = body

    @property
    def transport(self) -> asyncio.Transport | None:
        return self.protocol.transport

    async def read(self) -> bytes:
        return self.body


Request: TypeAlias = web.Request | Whole
Answer: TypeAlias = Callable[[Whole], Awaitable[web.StreamResponse]]
Answers: TypeAlias = dict[tuple[str, str], Answer]
"""By method and path."""
ANSWERS: web.AppKey[Answers] = web.AppKey("answers", dict)


def read_head(raw: bytes, answers: Answers) -> Head | None:
    """`raw`: up to the empty line. None unless it is of the plainest kind and asks for one of `answers`."""
    found = _HEAD.fullmatch(raw)
    if found is None:
        return None
    method, raw_path, path, asked = (part.decode() if part else "" for part in found.groups()[:4])
    answer = answers.get((method, path))
    query = _read_query(asked)
    headers = CIMultiDict((name.decode(), value.decode().rstrip(" ")) for name, value in _FIELD.findall(found[5]))
    names = {name.lower() for name in headers}
    if answer is None or query is None or names & _UNUSUAL or "host" not in names:
        return None
    if len(names) != len(headers) or len(names) > HEADERS:
        return None
    if headers.get("Connection", "keep-alive").lower() != "keep-alive":
        return None
    kind = _TYPE.fullmatch(headers.get("Content-Type", _NO_TYPE))
    length = _LENGTH.fullmatch(headers.get("Content-Length", "0"))
    if kind is None or length is None or int(length[0]) > BODY_MOST:
        return None
    return Head(
        method, raw_path, path, query, CIMultiDictProxy(headers), headers["Host"], kind[1],
        int(length[0]) if "content-length" in names else None, answer,
    )  # fmt: skip


def _read_query(asked: str) -> dict[str, str] | None:
    """None if something in it is said twice, or not as name=value."""
    if not asked:
        return {}
    pairs = [part.split("=") for part in asked.split("&")]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        return None
    query = dict(pair for pair in pairs)
    return query if len(query) == len(pairs) else None


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def written(answer: web.StreamResponse) -> bytes:
    """The bytes of an answer that is whole as well."""
    body = (answer.body or b"") if isinstance(answer, web.Response) else None
    if not isinstance(body, bytes | bytearray):
        raise TypeError(f"{answer!r} is an answer in pieces, to a request that came whole")
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    lines += [f"Content-Length: {len(body)}", f"Date: {_date(int(time.time()))}", "", ""]
    head = "\r\n".join(lines)
    if head.count("\r") + head.count("\n") != 2 * (len(lines) - 1):
        raise ValueError("a header of an answer has a line break in it")
    return head.encode() + body
