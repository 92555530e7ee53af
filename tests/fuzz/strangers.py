"""Damaged bytes for the two ports that do not speak HTTP/1: hand-shakes and frames of peers, and gRPC."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import msgpack

from bench.paced import Grpc
from cluster.frames import FrameError, decode
from cluster.handshake import BUFFER_BYTES, Dialer, HandshakeRefused
from coordinator.rpc.messages import CLASSES, PACKAGE
from tests.fuzz.decoders import _handshakes, _messages
from tests.fuzz.mutation import LONGEST, inputs
from tests.fuzz.target import Target

AT_ONCE = 12
"""Fewer than a node lets in unproven, or most would be turned away unread."""
MEMBER_EVERY = 4
END_S = 8.0
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "AcquireLease": ("DistributedGCService", {"resource_id": "r", "client_id": "a", "lease_duration_ms": 1_000}),
    "RenewLease": ("DistributedGCService", {"lease_id": "0" * 15 + "1", "client_id": "a", "extend_duration_ms": 5}),
    "ReleaseReference": ("DistributedGCService", {"resource_id": "r", "client_id": "a"}),
}
CLOSED = "the port is closed"
WRONG = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def _until(size: int, counts: Counter[str], one: Callable[[int], Awaitable[None]]) -> None:
    async def work(number: int) -> None:
        while counts["bytes"] < size:
            await one(number)

    await asyncio.gather(*map(work, range(AT_ONCE)))


# --- peers ------------------------------------------------------------------------------------------------------------


async def fuzz_peers(nodes: Target, size: int, seed: int) -> dict[str, Any]:
    counts, rng = Counter[str](), random.Random(seed)
    hellos = [*_handshakes(), *_real_hellos(nodes)]
    noise = inputs([*hellos, *(hello + rng.randbytes(BUFFER_BYTES) for hello in hellos)], seed)
    bodies = _refused_bodies(seed)
    followers = [name for name in nodes.nodes if name != nodes.leader()]

    async def one(number: int) -> None:
        counts["inputs"] += 1
        if number % MEMBER_EVERY == 0:
            here, there = followers if rng.randrange(2) else reversed(followers)
            as_whom, what = rng.choice([(there, "member"), ("n9", "not a member")])
            await _authenticated(nodes, here, as_whom, next(bodies), counts, what)
        else:
            await _unauthenticated(nodes.layout.peer(rng.choice(nodes.nodes)), next(noise), counts)

    await _until(size, counts, one)
    return dict(counts)


def _real_hellos(nodes: Target) -> list[bytes]:
    return [Dialer(nodes.credentials("n2"), other).opening() for other in ("n1", "n3")]


def _refused_bodies(seed: int) -> Iterator[bytes]:
    messages = _messages()
    for raw in inputs([*messages, b"".join(messages) * 8, *_large(messages)], seed):
        try:
            decode(raw)
        except FrameError:
            yield raw


def _large(messages: list[bytes]) -> list[bytes]:
    """With as much in each list as `inputs` leaves whole."""
    found = []
    for raw in messages:
        message = msgpack.unpackb(raw, use_list=False)
        lists = {name: value for name, value in message.items() if isinstance(value, tuple) and value}
        if lists:
            times = LONGEST // 2 // sum(len(msgpack.packb(value)) for value in lists.values())
            found.append(msgpack.packb({**message, **{name: value * times for name, value in lists.items()}}))
    return found


async def _unauthenticated(address: str, raw: bytes, counts: Counter[str]) -> None:
    reader, writer = await asyncio.open_connection(*_address(address))
    counts["bytes"] += min(len(raw), BUFFER_BYTES)  # nobody looks at the rest
    await _said(reader, writer, raw, counts)


async def _said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes, counts: Counter[str]) -> None:
    """All of it, and nothing more; then until the node hangs up."""
    try:
        async with asyncio.timeout(END_S):
            writer.write(raw)
            writer.write_eof()
            while await reader.read(1 << 16):
                pass
        counts["hung up on"] += 1
    except OSError:
        counts["hung up on"] += 1
    except TimeoutError:
        counts["left standing"] += 1
    finally:
        writer.transport.abort()


async def _authenticated(nodes: Target, here: str, as_whom: str, body: bytes, counts: Counter[str], what: str) -> None:
    """Proves the secret; then a frame with a broken MAC, or one sealed well around what is no message."""
    reader, writer = await asyncio.open_connection(*_address(nodes.layout.peer(here)))
    dialer = Dialer(nodes.credentials(as_whom), here)
    try:
        async with asyncio.timeout(END_S):
            writer.write(dialer.opening())
            while dialer.established is None and (chunk := await reader.read(4_096)):
                writer.write(dialer.feed(chunk))
            if dialer.established is not None:
                frame = bytearray(dialer.established.session().seal(body))
                if counts["inputs"] % 2:
                    frame[12] ^= 1
                counts["bytes"] += len(frame)
                counts[f"frames on links of a {what}"] += 1
                writer.write(frame)
                while await reader.read(1 << 16):
                    pass
                counts["links ended by the node"] += 1
    except HandshakeRefused:
        counts[f"refused: {what}"] += 1
    except OSError:
        counts["links ended by the node"] += 1
    except TimeoutError:
        counts["left standing"] += 1
    finally:
        writer.transport.abort()


# --- gRPC -------------------------------------------------------------------------------------------------------------


async def fuzz_grpc(nodes: Target, size: int, seed: int) -> dict[str, Any]:
    """Half as frames of HTTP/2 that are damaged, half as damaged messages in good ones; with no token."""
    counts, rng = Counter[str](), random.Random(seed)
    good = {f"/{PACKAGE}.{service}/{name}": _message(name, fields) for name, (service, fields) in CALLS.items()}
    whole = [Grpc(path[1:], message) for path, message in good.items()]
    frames = inputs(
        [each.hello() + each.ask() for each in whole] + [each.hello() + each.ask() * 40 for each in whole], seed
    )
    messages = inputs([*good.values(), b"".join(good.values()) * 60], seed)
    addresses = [str(nodes.layout.grpc(name)) for name in nodes.nodes]
    channels = [grpc.aio.insecure_channel(address) for address in addresses]

    async def one(number: int) -> None:
        counts["inputs"] += 1
        place = rng.randrange(3)
        if number % 2:
            await _raw(addresses[place], next(frames), counts)
        else:
            await _called(channels[place], rng.choice(list(good)), next(messages), counts)

    await _until(size, counts, one)
    await asyncio.gather(*(channel.close() for channel in channels))
    wrong = counts[CLOSED] + sum(counts[code.name] for code in WRONG)
    return {**counts, "wrong": wrong}


def _message(name: str, fields: dict[str, Any]) -> bytes:
    made: bytes = CLASSES[f"{name}Request"](**fields).SerializeToString()
    return made


async def _called(channel: grpc.aio.Channel, path: str, raw: bytes, counts: Counter[str]) -> None:
    counts["bytes"] += len(raw)
    try:
        await channel.unary_unary(path)(raw, timeout=END_S)
        counts["OK"] += 1
    except grpc.aio.AioRpcError as error:
        counts[error.code().name] += 1


async def _raw(address: str, raw: bytes, counts: Counter[str]) -> None:
    counts["bytes"] += len(raw)
    try:
        reader, writer = await asyncio.open_connection(*_address(address))
    except OSError:
        counts[CLOSED] += 1
        return
    await _said(reader, writer, raw, counts)
