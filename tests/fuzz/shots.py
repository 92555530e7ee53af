"""Damaged requests for each operation of the interface, and one connection that sends them and looks at the answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgpack

from coordinator.http.app import all_operations
from coordinator.http.bodies import JSON, MSGPACK, _decode
from coordinator.http.errors import ApiError
from coordinator.http.fields import Shape
from coordinator.http.heartbeats import CLIENT_HEADER, EXTEND_HEADER
from tests.fuzz.mutation import inputs
from tests.fuzz.target import NAMESPACE
from tests.security.tenants import OWNER, VICTIM, Belongings, request_for

ANSWER_S = 3.0
MORE_S = 0.2
LONG_BYTES = 48 << 10
OUTCOMES = ("denied", "retry", "unknown")
PACKED = "application/x-holdfast-leases"


class Shot(NamedTuple):
    raw: bytes
    is_last: bool
    """Its head is damaged too: nobody knows where the next request would begin."""


@dataclass(frozen=True)
class Aim:
    """One operation: a good request for it, and what its body may be."""

    name: str
    method: str
    path: str
    body: Any
    shape: Shape | None

    def bodies(self) -> list[tuple[str, bytes]]:
        body = {} if self.body is None else self.body
        long = {**body, "more": [body or {"a": "é" * 30}] * (LONG_BYTES // max(40, len(json.dumps(body))))}
        found = [(JSON, json.dumps(each).encode()) for each in (body, long)]
        found += [(MSGPACK, msgpack.packb(each)) for each in (body, long)]
        return found + [(PACKED, bytes(range(256)) * 160)] * self.path.endswith("/heartbeats")

    def refused(self, kind: str, raw: bytes) -> bool:
        """What the rules of this operation's body do not let through, whoever asks."""
        if self.shape is None or not raw:
            return False
        try:
            value = _decode(kind, raw)
            if isinstance(value, dict):
                self.shape.read(value)
                return False
        except ApiError:
            pass
        return True


def aims(has: Belongings) -> list[Aim]:
    made = []
    for operation in all_operations():
        method, path, body, query = request_for(operation, has)
        asked = f"{path}?{urlencode(query)}" if query else path
        made.append(
            Aim(f"{method} {operation.path.partition(':(')[0]}", method, asked, body, operation.asked_in_body())
        )
    return made


def shots(aim: Aim, token: str | None, seed: int, *, only_refused: bool = False) -> Iterator[Shot]:
    """Without end. `only_refused`: a good head, and a body that cannot be taken."""
    rng = random.Random(f"{aim.name} {seed}")
    bodies = aim.bodies()
    damaged = {kind: inputs([raw for other, raw in bodies if other == kind], rng.getrandbits(32)) for kind, _ in bodies}
    paths = inputs(
        [aim.path.encode(), aim.path.encode() + b"?limit=10&consistency=local&after=%C3%A9"], rng.getrandbits(32)
    )
    while True:
        # Packed leases are read by their own handler, of which the shapes know nothing.
        kind = rng.choice([each for each in damaged if each != PACKED or not only_refused])
        body = next(damaged[kind])
        if only_refused:
            if aim.refused(kind, body):
                yield Shot(_head(aim.method, aim.path.encode(), kind, token, len(body)) + body, is_last=False)
            continue
        path = next(paths)[:6_000] if aim.body is None or rng.randrange(4) == 0 else aim.path.encode()
        head = _head(aim.method, path, kind, token, len(body))
        if rng.randrange(3):
            yield Shot(head + body, is_last=path != aim.path.encode())
        else:
            yield Shot(_broken(head, rng) + body, is_last=True)


def _head(method: str, path: bytes, kind: str, token: str | None, length: int) -> bytes:
    fields = {"Host": "127.0.0.1", NAMESPACE: VICTIM, "Content-Type": kind, CLIENT_HEADER: OWNER, EXTEND_HEADER: "1000"}
    if token is not None:
        fields["Authorization"] = f"Bearer {token}"
    shown = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return method.encode() + b" " + path + f" HTTP/1.1\r\n{shown}Content-Length: {length}\r\n\r\n".encode()


def _broken(head: bytes, rng: random.Random) -> bytes:
    more = b"X-More: " + rng.randbytes(rng.randrange(1, 9_000)) + b"\r\n"
    seeds = [head, head.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"), head + head]
    return next(
        inputs([*seeds, head.replace(b"\r\n\r\n", b"\r\n" + more * rng.randrange(1, 8) + b"\r\n")], rng.getrandbits(32))
    )


@dataclass
class Seen:
    """What became of the shots at one operation."""

    bytes: int = 0
    inputs: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    untyped: list[str] = field(default_factory=list)
    """Answers that are neither good nor the one error shape."""


class Shooter:
    """One connection at a time to one node."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def fire(self, shot: Shot, seen: Seen) -> None:
        reader, writer = self._streams or await asyncio.open_connection(*self._address)
        self._streams = None
        seen.bytes += len(shot.raw)
        seen.inputs += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                writer.write(shot.raw)
                status, whole = await _answer(reader, writer, shot, seen)
        except TimeoutError:
            status, whole = "no answer yet", False
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            status, whole = "hung up", False
        seen.statuses[status] += 1
        if whole and not shot.is_last and status != "429":
            self._streams = reader, writer
        else:
            writer.transport.abort()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shot: Shot, seen: Seen
) -> tuple[str, bool]:
    """The status, and whether the answer was read to its end. A node that waits for more is told that none comes."""
    waiting = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
    if shot.is_last and not (await asyncio.wait([waiting], timeout=MORE_S))[0]:
        writer.write_eof()
    head = (await waiting).decode("latin-1").lower()
    status = head[9:12]
    length = head.partition("content-length: ")[2].partition("\r")[0]
    if not length:
        return status, False
    no_body = shot.raw[:5] == b"HEAD " or status in ("204", "304")
    body = b"" if no_body else await reader.readexactly(int(length))
    if status >= "400" and body and not _is_typed(head, body):
        seen.untyped.append(f"{status} {body[:200]!r} to {shot.raw[:300]!r}")
    return status, "connection: close" not in head


def _is_typed(head: str, body: bytes) -> bool:
    try:
        error = (msgpack.unpackb(body) if MSGPACK in head else json.loads(body))["error"]
        return bool(error["code"] and error["message"] and error["outcome"] in OUTCOMES)
    except (ValueError, KeyError, TypeError):
        return False
