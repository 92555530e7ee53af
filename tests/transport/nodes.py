"""What the transport tests share: a receiver that records, nodes on loopback, waiting with a deadline."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from cluster.options import Limits, Timing
from cluster.ports import Message
from cluster.transport import SocketTransport

SECRET = b"the shared secret of the test cluster"
CLUSTER = "blue"
DEADLINE = 60.0


def run(loop_name: str, coroutine: Coroutine[Any, Any, None]) -> None:
    factory = uvloop.new_event_loop if loop_name == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(coroutine)


class Recorder:
    """A Receiver. `events` has the ups and downs, `messages` what came, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.messages: list[Message] = []
        self.batches = 0
        self.on_each: Callable[[str, Message], None] = lambda peer, message: None
        self._changed = asyncio.Event()

    def on_message(self, peer: str, message: Message) -> None:
        self.messages.append(message)
        self._changed.set()
        self.on_each(peer, message)

    def on_batch_end(self) -> None:
        self.batches += 1

    def on_connected(self, peer: str) -> None:
        self.events.append(("up", peer))
        self._changed.set()

    def on_disconnected(self, peer: str) -> None:
        self.events.append(("down", peer))
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_up(self, times: int = 1) -> None:
        await self.until(lambda: sum(kind == "up" for kind, _ in self.events) >= times)

    async def until_count(self, count: int) -> None:
        await self.until(lambda: len(self.messages) >= count)


class Logbook(logging.Handler):
    """Keeps the lines, and lets a test wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._changed.set()

    def about(self, word: str) -> list[str]:
        return [line for line in self.lines if word in line]

    async def until(self, word: str) -> str:
        async with asyncio.timeout(DEADLINE):
            while not self.about(word):
                self._changed.clear()
                await self._changed.wait()
        return self.about(word)[0]


class Node:
    def __init__(self, node_id: str, **changes: Any) -> None:
        self.id = node_id
        self.seen = Recorder()
        self.log = Logbook()
        logger = logging.Logger(node_id)
        logger.addHandler(self.log)
        settings: dict[str, Any] = {
            "cluster_id": CLUSTER,
            "listen": "127.0.0.1:0",
            "secret": SECRET,
            "timing": Timing(),
            "limits": Limits(),
            "incarnation": random.getrandbits(64),
            "log": logger,
            "random": random.Random(node_id),
        }
        self.transport = SocketTransport(asyncio.get_running_loop(), node_id, **settings | changes)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.transport.bound.rpartition(":")
        return host, int(port)

    async def start(self) -> None:
        self.transport.start(self.seen)
        await self.transport.ready()

    async def stop(self) -> None:
        self.transport.close()
        await self.transport.wait_closed()


@asynccontextmanager
async def started(*nodes: Node) -> AsyncIterator[None]:
    try:
        for node in nodes:
            await node.start()
        yield
    finally:
        for node in nodes:
            await node.stop()


def acquaint(*nodes: Node) -> None:
    addresses = {node.id: node.transport.bound for node in nodes}
    for node in nodes:
        node.transport.set_peers(addresses)


async def linked(*nodes: Node) -> None:
    acquaint(*nodes)
    for node in nodes:
        await node.seen.until_up(len(nodes) - 1)


def note(number: int) -> Message:
    return {"type": "read_index", "nonce": number}


def append(entries: Any = (), **changes: Any) -> Message:
    message = {"type": "append_entries", "term": 3, "commit_index": 9, "sent": 1.5, "now_ms": 77}
    return message | {"entries": entries, "prevLogIdx": 8, "prevLogTerm": 2} | changes
