"""Strangers and liars at the peer port: refused, logged once, bounded in memory; the good link never notices."""

from __future__ import annotations

import ast
import asyncio
import errno
import gc
import hashlib
import os
import pickle
import random
import resource
import struct
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest

import cluster
from cluster.frames import LinkGuards, encode
from cluster.listener import HALF_OPEN
from cluster.options import MIB
from cluster.quiet import QUIET_KEYS, QUIET_SECONDS, Quiet
from tests.waiting import until

from .nodes import DEADLINE, Node, linked, note, run, started
from .test_links import as_peer, authentic

loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What still came before the other side closed."""
    async with asyncio.timeout(DEADLINE):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def attack(node: Node, payload: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*node.address)
    writer.write(payload)
    answer = await until_closed(reader)
    writer.close()
    return answer


async def exchange(sender: Node, receiver: Node, first: int, count: int) -> None:
    """The good link works: all of them arrive, in order."""
    for number in range(first, first + count):
        assert sender.transport.send(receiver.id, note(number))
    await receiver.seen.until_count(first + count)


def digest(node: Node) -> str:
    return hashlib.sha256(b"".join(map(encode, node.seen.messages))).hexdigest()


def expected_digest(count: int) -> str:
    return hashlib.sha256(b"".join(encode(note(number)) for number in range(count))).hexdigest()


async def besieged(siege: Callable[[Node, Node], Awaitable[None]]) -> Node:
    """Runs `siege` against n1 while n2 is linked to it; checks that nothing but n2's messages got through."""
    first, second = Node("n1", handshake_seconds=1.0), Node("n2")
    async with started(first, second):
        await linked(first, second)
        await exchange(second, first, 0, 100)
        await siege(first, second)
        await exchange(second, first, len(first.seen.messages), 100)
        assert digest(first) == expected_digest(len(first.seen.messages))
        assert first.seen.events == [("up", "n2")]
    return first


@loops
def test_random_bytes_are_refused_and_logged_once(loop: str) -> None:
    chance = random.Random(5)

    async def siege(node: Node, good: Node) -> None:
        for _ in range(100):
            # Lengths over 1 KiB are refused at the prefix, so that no attempt waits for the deadline.
            await attack(node, b"\xff" + chance.randbytes(chance.randint(1, 20_000)))
        assert len(node.log.lines) == 1
        assert "127.0.0.1: malformed" in node.log.lines[0]

    async def scenario() -> None:
        await besieged(siege)

    run(loop, scenario())


@loops
def test_http_tls_and_pickle_at_the_port_get_a_closed_door(loop: str) -> None:
    async def siege(node: Node, good: Node) -> None:
        for payload in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
            struct.pack(">H", 100) + pickle.dumps({"x": "y" * 200})[:100],
            struct.pack(">H", 5) + msgpack.packb([1, 2, 3, 4]),
        ):
            answer = await attack(node, payload)
            assert answer in (b"", b"\x00\x09\x91\xa7refused")

    async def scenario() -> None:
        await besieged(siege)

    run(loop, scenario())


@loops
def test_two_hundred_half_open_sockets_hold_little_and_block_nobody(loop: str) -> None:
    async def siege(node: Node, good: Node) -> None:
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        held: list[Connection] = [await asyncio.open_connection(*node.address) for _ in range(200)]
        for _, writer in held:
            writer.write(b"\x03")  # half of a length, and then nothing
        assert await node.log.until("crowded")
        assert node.transport.half_open <= HALF_OPEN
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert after - before < 8 * MIB  # both ends of all sockets are in this process
        assert len(node.log.about("crowded")) == 1
        await exchange(good, node, len(node.seen.messages), 100)
        for reader, _ in held:  # the deadline ends them
            assert await until_closed(reader) == b""
        assert len(node.log.about("timeout")) == 1
        for _, writer in held:
            writer.close()
        assert node.transport.half_open == 0

    async def scenario() -> None:
        await besieged(siege)

    run(loop, scenario())


@loops
@pytest.mark.parametrize(("address", "returns"), [("127.0.0.2", True), ("127.0.0.1", False)])
def test_a_stranger_that_holds_every_half_open_place_keeps_no_peer_out(loop: str, address: str, returns: bool) -> None:
    """Not even if it comes back whenever one of its sockets is closed; nor, if it does not, at the peer's address."""

    async def stranger(node: Node) -> None:
        again = True
        while again:
            reader, writer = await asyncio.open_connection(*node.address, local_addr=(address, 0))
            try:
                await until_closed(reader)
            finally:
                writer.transport.abort()
            again = returns

    async def scenario() -> None:
        first, second = Node("n1", handshake_seconds=DEADLINE), Node("n2")
        async with started(first, second):
            first.transport.set_peers({"n2": "127.0.0.1:1"})  # only n2 can dial
            strangers = [asyncio.ensure_future(stranger(first)) for _ in range(HALF_OPEN + 8)]
            await first.log.until("crowded")
            second.transport.set_peers({"n1": first.transport.bound})
            await second.seen.until_up()
            assert first.transport.half_open <= HALF_OPEN
            for each in strangers:
                each.cancel()
            await asyncio.gather(*strangers, return_exceptions=True)
            await until(lambda: first.transport.half_open == 0, "the strangers to be gone")

    run(loop, scenario())


def test_strangers_of_many_addresses_cannot_fill_the_log() -> None:
    now = 0.0
    quiet = Quiet(lambda: now)

    def told(count: int) -> int:
        return sum(quiet.kept_back(f"2001:db8::{number:x}", "malformed") is not None for number in range(count))

    assert told(5 * QUIET_KEYS) == QUIET_KEYS
    assert told(5 * QUIET_KEYS) == 0
    now += QUIET_SECONDS
    assert quiet.kept_back("2001:db8::0", "malformed") == 1
    assert told(5 * QUIET_KEYS) == QUIET_KEYS - 1


@loops
def test_a_flood_before_the_proof_is_cut_off_early(loop: str) -> None:
    async def siege(node: Node, good: Node) -> None:
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            hello = struct.pack(">H", 1000) + b"\x00" * 500
            await attack(node, hello + b"\x00" * MIB)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert after - before < MIB

    async def scenario() -> None:
        await besieged(siege)

    run(loop, scenario())


FRAME_ATTACKS: list[tuple[str, Callable[[Any], bytes]]] = [
    ("oversize", lambda session: struct.pack(">IQ16s", 2**32 - 1, 1, bytes(16))),
    ("mac", lambda session: struct.pack(">IQ16s", 5, 1, bytes(16)) + b"hello"),
    ("mac", lambda session: session.seal(encode(note(1)))[:-1] + b"\x00"),
    ("schema", lambda session: session.seal(msgpack.packb({"type": "apply_command", "command": b"x"}))),
    ("malformed", lambda session: session.seal(pickle.dumps({"type": "echo"}))),
    ("schema", lambda session: session.seal(msgpack.packb(note(1) | {"nonce": -1}))),
]


@loops
@pytest.mark.parametrize(("kind", "forge"), FRAME_ATTACKS)
def test_a_bad_frame_closes_the_link_and_nothing_is_delivered(loop: str, kind: str, forge: Any) -> None:
    """From an authenticated peer even: n3 has the secret and misbehaves; n2 is not touched by it."""

    async def scenario() -> None:
        first, second = Node("n1"), Node("n2")
        async with started(first, second):
            first.transport.set_peers({"n2": second.transport.bound, "n3": "127.0.0.1:1"})
            second.transport.set_peers({"n1": first.transport.bound})
            await first.seen.until_up()
            for _ in range(3):
                reader, writer, dialer = await authentic(first, as_peer("n3"))
                assert dialer.established is not None
                writer.write(forge(dialer.established.session()))
                await until_closed(reader)
                writer.close()
            await exchange(second, first, 0, 10)
            assert first.seen.messages == [note(number) for number in range(10)]
            assert len(first.log.about(f" {kind}:")) == 1
            assert ("down", "n2") not in first.seen.events

    run(loop, scenario())


# --- someone on the wire ----------------------------------------------------------------------------------------------


class Wire:
    """Between dialer and acceptor. Records what the dialer sends, and can send the recorded frames again."""

    def __init__(self) -> None:
        self.recorded = b""
        self._acceptor: asyncio.StreamWriter | None = None
        self._pumps: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def to(self, node: Node) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back_reader, self._acceptor = await asyncio.open_connection(*node.address)
            self._pumps += [
                asyncio.ensure_future(self._pump(reader, self._acceptor, recording=True)),
                asyncio.ensure_future(self._pump(back_reader, writer, recording=False)),
            ]

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            server.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, recording: bool) -> None:
        try:
            while chunk := await reader.read(65536):
                if recording:
                    self.recorded += chunk
                writer.write(chunk)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def handshake_bytes(self) -> int:
        hello = 2 + int.from_bytes(self.recorded[:2], "big")
        return hello + 2 + int.from_bytes(self.recorded[hello : hello + 2], "big")

    def repeat_frames(self) -> None:
        assert self._acceptor is not None
        self._acceptor.write(self.recorded[self.handshake_bytes() :])


@loops
@pytest.mark.parametrize(("guards", "times"), [(LinkGuards(), 1), (LinkGuards(frame_sequence=False), 2)])
def test_frames_replayed_on_the_link_count_once(loop: str, guards: LinkGuards, times: int) -> None:
    """And with the guard off the same replay is delivered twice, so this test would notice its loss."""

    async def scenario() -> None:
        first, second, wire = Node("n1", guards=guards), Node("n2"), Wire()
        async with started(first, second), wire.to(first) as between:
            first.transport.set_peers({"n2": second.transport.bound})
            second.transport.set_peers({"n1": between})
            await second.seen.until_up()
            await exchange(second, first, 0, 5)
            wire.repeat_frames()
            second.transport.send("n1", note(99))
            await first.seen.until(lambda: first.seen.messages[-1] == note(99))
            assert first.seen.messages == [note(number) for number in range(5)] * times + [note(99)]

    run(loop, scenario())


@loops
def test_a_recorded_connection_played_again_is_refused(loop: str) -> None:
    async def scenario() -> None:
        first, second, wire = Node("n1"), Node("n2"), Wire()
        async with started(first, second), wire.to(first) as between:
            first.transport.set_peers({"n2": second.transport.bound})
            second.transport.set_peers({"n1": between})
            await second.seen.until_up()
            await exchange(second, first, 0, 5)
            await attack(first, wire.recorded)
            assert await first.log.until("bad_proof")
            await exchange(second, first, 5, 5)
            assert digest(first) == expected_digest(10)
            assert first.seen.events == [("up", "n2")]

    run(loop, scenario())


@loops
def test_nothing_from_the_network_is_unpickled(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def trap(name: str) -> Any:
        return lambda *args, **kwargs: calls.append(name)

    payload = pickle.dumps({"type": "echo"})
    for name in ("load", "loads", "Unpickler", "_Unpickler", "_load", "_loads"):
        monkeypatch.setattr(pickle, name, trap(name), raising=False)

    async def siege(node: Node, good: Node) -> None:
        await attack(node, struct.pack(">H", len(payload)) + payload)
        await attack(node, struct.pack(">I", len(payload)) + payload)

    async def scenario() -> None:
        await besieged(siege)

    run(loop, scenario())
    assert calls == []


def test_no_module_of_the_transport_can_unpickle() -> None:
    banned = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "pysyncobj"}
    folder = Path(cluster.__file__).parent
    for name in ("frames", "messages", "handshake", "link", "listener", "tls", "transport", "scheduler"):
        tree = ast.parse((folder / f"{name}.py").read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not banned & {imported.split(".")[0] for imported in names}, name


# --- shortage ---------------------------------------------------------------------------------------------------------


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        try:
            while True:
                taken.append(os.dup(0))
        except OSError as error:
            assert error.errno == errno.EMFILE
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@loops
def test_running_out_of_descriptors_does_not_unbind_the_port(loop: str) -> None:
    async def siege(node: Node, good: Node) -> None:
        import socket

        callers = [socket.socket() for _ in range(3)]
        with no_descriptors_left():
            for caller in callers:
                caller.connect(node.address)  # the kernel takes it into the backlog; accept fails
            assert "ulimit -n" in await node.log.until("shortage")
        for caller in callers:
            reader, writer = await asyncio.open_connection(sock=caller)
            writer.write(b"\xff\xff")
            await until_closed(reader)
            writer.close()
        assert len(node.log.about("shortage")) == 1

    async def scenario() -> None:
        await besieged(siege)

    run(loop, scenario())
