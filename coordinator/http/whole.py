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
from typing import TYPE_CHECKING, TypeAlias, TypeVar

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
"""Of one connection, and as many headers of others."""
HEAD_KEPT_MOST = 1 << 10
"""Longer ones are read each time: all connections together could keep too much."""

_LINE = re.compile(rb"([A-Z]+) ((/[A-Za-z0-9/_-]*)(?:\?([A-Za-z0-9_.~:=&-]+))?) HTTP/1\.1\r\n")
_FIELDS = re.compile(rb"(?:[A-Za-z0-9-]+: [!-~][ -~]*\r\n)+")
_FIELD = re.compile(rb"([^:]+): ([^\r]+)\r\n")
_UNUSUAL = frozenset((
    "transfer-encoding", "content-encoding", "expect", "upgrade", "te", "trailer", "http2-settings", "keep-alive",
    "proxy-connection", "sec-websocket-key1",
))  # fmt: skip
"""Headers after which the rest of a request, or of the connection, may mean something else."""
_TYPE = re.compile("([a-z]+/[a-z0-9.+-]+)(?:; ?charset=utf-8)?")
_LENGTH = re.compile("[0-9]{1,5}")
_NO_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Fields:
    """The headers of a request. Those of one connection are mostly the same again and again."""

    headers: CIMultiDictProxy[str]
    host: str
    content_type: str
    content_length: int | None


@dataclass(frozen=True, slots=True)
class Head:
    """All of a request but its body."""

    method: str
    raw_path: str
    path: str
    query: Mapping[str, str]
    places: Mapping[str, str]
    """What stands in the path where the operation has a name in braces."""
    fields: Fields
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
        self.match_info = head.places
        self.headers = head.fields.headers
        self.host = head.fields.host
        self.content_type = head.fields.content_type
        self.content_length = head.fields.content_length
        self.body = body

    @property
    def transport(self) -> asyncio.Transport | None:
        return self.protocol.transport

    async def read(self) -> bytes:
        return self.body


Request: TypeAlias = web.Request | Whole
Answer: TypeAlias = Callable[[Whole], Awaitable[web.StreamResponse]]
T = TypeVar("T")
Found: TypeAlias = tuple[Answer, Mapping[str, str]]


class Answers(dict[tuple[str, str], Answer]):
    """By method and path, which may have names in braces. Finds what aiohttp would find, in the order it looks."""

    def __init__(self, answers: Mapping[tuple[str, str], Answer]) -> None:
        super().__init__(answers)
        self._patterns: dict[tuple[str, str], list[tuple[re.Pattern[str], str]]] = {}
        for method, path in answers:
            if "{" in path:
                before = path.partition("{")[0].rpartition("/")[0]
                pattern = web.DynamicResource(path).get_info()["pattern"]
                self._patterns.setdefault((method, before), []).append((pattern, path))

    def find(self, method: str, path: str) -> Found | None:
        """The answer, and what stands in the path for its names."""
        plain = self.get((method, path))
        if plain is not None:
            return plain, {}
        part = path
        while part := part.rpartition("/")[0]:
            for pattern, asked in self._patterns.get((method, part), ()):
                found = pattern.fullmatch(path)
                if found is not None:
                    answer = self.get((method, asked))
                    return None if answer is None else (answer, found.groupdict())
        return None


ANSWERS: web.AppKey[Answers] = web.AppKey("answers", Answers)


def read_head(raw: bytes, answers: Answers, kept: dict[bytes, Fields] | None = None) -> Head | None:
    """`raw`: up to the empty line. None unless it is of the plainest kind and asks for one of `answers`. Headers that
    are among those `kept` are not read again."""
    line = _LINE.match(raw)
    if line is None:
        return None
    method, raw_path, path, asked = (part.decode() if part else "" for part in line.groups())
    found, query = answers.find(method, path), _read_query(asked)
    if found is None or query is None:
        return None
    rest = raw[line.end() :]
    fields = kept.get(rest) if kept is not None else None
    if fields is None:
        fields = _read_fields(rest)
        if fields is not None and kept is not None and len(rest) <= HEAD_KEPT_MOST:
            keep(kept, rest, fields)
    return None if fields is None else Head(method, raw_path, path, query, found[1], fields, found[0])


def keep(kept: dict[bytes, T], raw: bytes, read: T) -> None:
    """The bound of what a connection remembers."""
    if len(kept) >= HEADS_KEPT:
        kept.clear()
    kept[raw] = read


def _read_fields(raw: bytes) -> Fields | None:
    if not _FIELDS.fullmatch(raw):
        return None
    headers = CIMultiDict((name.decode(), value.decode().rstrip(" ")) for name, value in _FIELD.findall(raw))
    names = {name.lower() for name in headers}
    if names & _UNUSUAL or "host" not in names or len(names) != len(headers) or len(names) > HEADERS:
        return None
    if headers.get("Connection", "keep-alive").lower() != "keep-alive":
        return None
    kind = _TYPE.fullmatch(headers.get("Content-Type", _NO_TYPE))
    length = _LENGTH.fullmatch(headers.get("Content-Length", "0"))
    if kind is None or length is None or int(length[0]) > BODY_MOST:
        return None
    told = int(length[0]) if "content-length" in names else None
    return Fields(CIMultiDictProxy(headers), headers["Host"], kind[1], told)


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
