"""The port of a real node: strangers, wrong secrets, repeats and oversized bodies are refused, and change nothing."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest

from coordinator.addresses import split_address
from coordinator.gossip.calling import (
    MAC_HEADER,
    NONCE_HEADER,
    PREFIX,
    SENDER_HEADER,
    Caller,
    CallFailed,
    CallRefused,
)
from coordinator.gossip.limits import BODIES_BYTES_PER_ADDRESS, CONNECTIONS_PER_ADDRESS, MESSAGE_BYTES
from coordinator.gossip.messages import Message, encode
from coordinator.gossip.node import GossipNode
from coordinator.gossip.replica import Item
from coordinator.gossip.seal import Seal
from coordinator.gossip.settings import GossipSettings, SettingsError, load_settings
from coordinator.gossip.store import Store, StoreError
from coordinator.gossip.tally import STANDARD, Shape
from tests.gossip.group import SECRET
from tests.ports import free_address
from tests.waiting import until

NOTHING = msgpack.packb([])


def serve(tmp_path: Path, check: Callable[[GossipNode, str, aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def run() -> None:
        address = free_address()
        node = GossipNode(GossipSettings("g1", address, tmp_path / "g1.db", SECRET, (), 10_000))
        await node.start()
        try:
            async with aiohttp.ClientSession() as session:
                await check(node, address, session)
        finally:
            await node.stop()

    asyncio.run(run())


async def raw_request(session: aiohttp.ClientSession, address: str, headers: dict[str, str], body: bytes) -> int:
    async with session.post(f"http://{address}{PREFIX}/create", headers=headers, data=body) as answer:
        assert MAC_HEADER not in answer.headers or answer.status in (200, 400, 409)
        return answer.status


def test_only_whoever_has_the_secret_is_heard(tmp_path: Path) -> None:
    body = msgpack.packb(["x", b"1"])

    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        assert await raw_request(session, address, {}, body) == 403
        assert await raw_request(session, address, {SENDER_HEADER: "a", NONCE_HEADER: "zz"}, body) == 403
        nonce = os.urandom(40)
        mac = Seal(SECRET).request("POST", f"{PREFIX}/create", "a", "g1", nonce, body)
        made_up = {SENDER_HEADER: "a", NONCE_HEADER: nonce.hex(), MAC_HEADER: mac.hex()}
        assert await raw_request(session, address, made_up, body) == 403
        stranger = Caller("a", Seal(b"another secret here"), session)
        with pytest.raises(CallFailed, match="MAC"):
            await stranger.call(address, "create", lambda _: body)
        assert node.replica.items == {}
        assert (await Caller("a", Seal(SECRET), session).call(address, "create", lambda _: body))[0] == "g1"
        assert list(node.replica.items) == ["x"]

    serve(tmp_path, check)


def test_a_repeated_request_is_refused(tmp_path: Path) -> None:
    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        _, nonce = await Caller("a", Seal(SECRET), session)._challenge(address)
        body = msgpack.packb(["x", b"1"])
        mac = Seal(SECRET).request("POST", f"{PREFIX}/create", "a", "g1", nonce, body)
        headers = {SENDER_HEADER: "a", NONCE_HEADER: nonce.hex(), MAC_HEADER: mac.hex()}
        other_body = {**headers, MAC_HEADER: mac.hex()}
        assert await raw_request(session, address, other_body, msgpack.packb(["y", b"1"])) == 403
        assert await raw_request(session, address, {**headers, SENDER_HEADER: "b"}, body) == 403
        assert await raw_request(session, address, headers, body) == 200
        assert await raw_request(session, address, headers, body) == 403
        assert list(node.replica.items) == ["x"]

    serve(tmp_path, check)


def test_oversized_malformed_and_borrowed_names_are_refused(tmp_path: Path) -> None:
    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        caller = Caller("a", Seal(SECRET), session)
        with pytest.raises(CallFailed):
            await caller.call(address, "say", lambda _: bytes(MESSAGE_BYTES + 1))
        for verb, body in (
            ("say", b"\xc1"),
            ("greet", encode(Message("b"))),
            ("dance", msgpack.packb([])),
            ("create", msgpack.packb(["x"])),
            ("create", msgpack.packb(["x" * 300, b""])),
        ):
            with pytest.raises(CallRefused):
                await caller.call(address, verb, lambda _, body=body: body)
        with pytest.raises(CallRefused, match="not here"):
            await caller.call(address, "delete", lambda _: msgpack.packb(["x"]))
        assert node.replica.items == {}

    serve(tmp_path, check)


def test_a_node_whose_file_fails_stops(tmp_path: Path) -> None:
    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        node._store.close()
        with pytest.raises(sqlite3.Error):
            await node.create("x", b"1")
        await until(node.failed.is_set, "the node to give up")
        with pytest.raises(StoreError, match="tells nothing"):
            await node.answer(Message("a"), greeting=True)

    serve(tmp_path, check)


def test_nobody_is_told_what_is_not_on_disk(tmp_path: Path) -> None:
    """A delete whose transaction runs while a round begins: a node that died now would have its record back."""

    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        await node.create("x", b"1")
        begun, goes_on, save = threading.Event(), threading.Event(), node._store.save

        def slow(changes: Iterable[tuple[str, Item | None]]) -> None:
            begun.set()
            goes_on.wait(90)
            save(changes)

        node._store.save = slow  # type: ignore[method-assign]
        heard: list[str] = []
        other = GossipNode(GossipSettings("g2", free_address(), tmp_path / "g2.db", SECRET, (), 10_000))
        answer = other.answer

        async def listening(message: Message, *, greeting: bool) -> Message:
            heard.extend(notice.record_id for notice in message.notices)
            return await answer(message, greeting=greeting)

        other.answer = listening  # type: ignore[method-assign]
        await other.start()
        try:
            deleting = asyncio.create_task(node.delete("x"))
            await until(begun.is_set, "the transaction to begin")
            round_trip = asyncio.create_task(node._exchange(other.settings.listen))
            done, _ = await asyncio.wait({round_trip}, timeout=0.5)
            assert not done and not heard, "said before it was stored"
            goes_on.set()
            await asyncio.gather(deleting, round_trip)
            assert heard == ["x"]
        finally:
            goes_on.set()
            await other.stop()

    serve(tmp_path, check)


def test_a_stranger_at_a_peers_address_does_no_harm(tmp_path: Path) -> None:
    """Bytes that are no text in a header, and an answer that sends the asker elsewhere."""

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/challenge" in head:
            body = msgpack.packb(["g2", os.urandom(40)])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nX-Gossip-Mac: \xff\xfe\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        server = await asyncio.start_server(stranger, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(CallFailed, match="MAC"):
                await node._exchange(f"127.0.0.1:{port}")
        finally:
            server.close()

    serve(tmp_path, check)


# --- strangers in numbers ---------------------------------------------------------------------------------------------


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(90):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


def test_connections_of_strangers_are_bounded_and_a_peer_gets_through(tmp_path: Path) -> None:
    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        host, port = split_address("listen", address)
        where: dict[str, Any] = {"host": host, "port": port, "local_addr": ("127.0.0.2", 0)}
        held = [await asyncio.open_connection(**where) for _ in range(CONNECTIONS_PER_ADDRESS)]
        reader, writer = await asyncio.open_connection(**where)
        assert b"too_many_connections" in await until_closed(reader)
        assert (await Caller("a", Seal(SECRET), session).call(address, "status", lambda _: msgpack.packb([])))[
            0
        ] == "g1"
        for _, each in (*held, (reader, writer)):
            each.transport.abort()

    serve(tmp_path, check)


def test_a_connection_that_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.gossip.listening.HEAD_S", 0.2)

    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        host, port = split_address("listen", address)
        reader, writer = await asyncio.open_connection(host, port)
        assert await until_closed(reader) == b""
        writer.close()

    serve(tmp_path, check)


def test_bodies_of_strangers_are_bounded_before_they_come(tmp_path: Path) -> None:
    """A nonce is to be had for the asking, so it lets nobody send as much as it likes."""

    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        host, port = split_address("listen", address)
        held = []

        async def send() -> asyncio.StreamReader:
            _, nonce = await Caller("a", Seal(b"of a stranger, surely"), session)._challenge(address)
            reader, writer = await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0))
            held.append(writer)
            head = f"POST {PREFIX}/say HTTP/1.1\r\nHost: g1\r\n{SENDER_HEADER}: a\r\n{NONCE_HEADER}: {nonce.hex()}\r\n"
            writer.write(f"{head}Content-Length: {MESSAGE_BYTES}\r\n\r\n".encode() + bytes(1024))
            return reader

        for _ in range(BODIES_BYTES_PER_ADDRESS // MESSAGE_BYTES):
            await send()
        bodies = node._listener._bodies
        await until(lambda: bodies.held == BODIES_BYTES_PER_ADDRESS, "all of them to be read")
        one_more = await send()
        assert (await one_more.readline()).startswith(b"HTTP/1.1 503")
        assert (await Caller("a", Seal(SECRET), session).call(address, "status", lambda _: msgpack.packb([])))[
            0
        ] == "g1"
        for each in held:
            each.transport.abort()
        await until(lambda: bodies.held == 0, "nothing to be kept of them")

    serve(tmp_path, check)


def test_what_strangers_do_is_logged_once_in_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        for number in range(20):
            assert await raw_request(session, address, {SENDER_HEADER: f"a{number}", NONCE_HEADER: "00"}, b"") == 403
        told = [each for each in caplog.records if each.getMessage() == "gossip_refused"]
        assert len(told) == 1

    serve(tmp_path, check)


def test_records_are_on_disk_for_their_owner_only(tmp_path: Path) -> None:
    async def check(node: GossipNode, address: str, session: aiohttp.ClientSession) -> None:
        await node.create("x", b"1")
        modes = {each.name: each.stat().st_mode & 0o077 for each in os.scandir(tmp_path)}
        assert modes and not any(modes.values()), modes

    before = os.umask(0o022)
    try:
        serve(tmp_path, check)
    finally:
        os.umask(before)


def test_a_file_belongs_to_one_node(tmp_path: Path) -> None:
    Store(tmp_path / "g.db", "g1", STANDARD).close()
    again = Store(tmp_path / "g.db", "g1", STANDARD)
    assert again.incarnation == 2
    with pytest.raises(StoreError, match="another process"):
        Store(tmp_path / "g.db", "g1", STANDARD)
    again.close()
    for name, shape in (("g2", STANDARD), ("g1", Shape(8, 4, 10))):
        with pytest.raises(StoreError, match="own file"):
            Store(tmp_path / "g.db", name, shape)


def test_settings_say_what_is_wrong(tmp_path: Path) -> None:
    for name, secret, mode in (("secret", SECRET, 0o600), ("short", b"short", 0o600), ("open", SECRET, 0o640)):
        (tmp_path / name).write_bytes(secret)
        (tmp_path / name).chmod(mode)
    good = 'node_id = "g1"\nlisten = "127.0.0.1:7301"\nfile = "g1.db"\nsecret_file = "secret"\n'
    config = tmp_path / "g1.toml"
    config.write_text(good + 'peers = ["127.0.0.1:7302"]\n')
    assert load_settings(config).peers == ("127.0.0.1:7302",)
    for text, said in (
        ("", "missing"),
        (good + "x = 1", "not known"),
        (good + "peers = 1", "must be list"),
        (good + 'peers = ["127.0.0.1:7301"]', "no peer of its own"),
        (good + "round_ms = 1", "round_ms"),
        (good.replace('"secret"', '"short"'), "at least 16"),
        (good.replace('"secret"', '"none"'), "cannot read"),
        (good.replace('"secret"', '"open"'), "chmod 600"),
        (good.replace("7301", "x"), "port"),
        ("=", "not TOML"),
    ):
        config.write_text(text)
        with pytest.raises(SettingsError, match=said):
            load_settings(config)
