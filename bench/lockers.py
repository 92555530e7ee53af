"""Locks of ours and of others behind one face: a client that acquires and releases one key, and says when.

Ours, etcd and Redis are asked by the same small Python client (bench/wire.py), ZooKeeper by kazoo, as its users do.
etcd: its lock service through the JSON gateway, one lease a client. Redis: SET NX PX and the script that releases only
what is one's own, on one server that syncs every write; a client that does not get the key asks again after a pause,
for Redis has no queue. Redlock: the same on five servers at once, held by a majority.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kazoo.client import KazooClient  # type: ignore[import-untyped]

from bench.load import Api
from bench.wire import Wire, connect, content_of, line_ends, request

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
TTL_S = 60
WAIT_MS = 60_000
PAUSE_S = (0.001, 0.004)
"""Before a client of Redis asks again."""


@dataclass(frozen=True)
class Held:
    """One acquire and release, in seconds of one clock."""

    asked: float
    granted: float
    released: float


class Locker(Protocol):
    """One client of one system."""

    async def acquire(self) -> None: ...

    async def release(self) -> None: ...


NewLocker = Callable[[str, int], Awaitable[Locker]]
"""For a key, and the number of the client."""


async def pairs(lockers: list[Locker], seconds: float) -> list[Held]:
    """Each client has one pair under way, one after the other, for `seconds`."""
    held: list[Held] = []
    end = time.perf_counter() + seconds

    async def client(locker: Locker) -> None:
        while (asked := time.perf_counter()) < end:
            await locker.acquire()
            granted = time.perf_counter()
            await locker.release()
            held.append(Held(asked, granted, time.perf_counter()))

    await asyncio.gather(*map(client, lockers))
    return held


# --- ours -------------------------------------------------------------------------------------------------------------


class HoldfastLocker:
    def __init__(self, wire: Wire, key: str, client: str) -> None:
        self._wire = wire
        self._mine = {"lock_key": key, "client_id": client}
        asked = {**self._mine, "lease_time_ms": TTL_S * 1_000, "block_time_ms": WAIT_MS}
        self._acquire = request("POST", "/api/v1/locks/acquire?timeout_ms=60000", asked)
        self._token = 0

    async def acquire(self) -> None:
        self._token = json.loads(content_of(await self._wire.ask(self._acquire), "acquire"))["fencing_token"]

    async def release(self) -> None:
        body = {**self._mine, "fencing_token": self._token}
        content_of(await self._wire.ask(request("POST", "/api/v1/locks/release", body)), "release")


def of_holdfast(api: Api) -> NewLocker:
    async def new(key: str, number: int) -> Locker:
        return HoldfastLocker(await connect(api.addresses[0]), key, f"c{number}")

    return new


# --- etcd -------------------------------------------------------------------------------------------------------------


class EtcdLocker:
    def __init__(self, wire: Wire, key: str, lease: str) -> None:
        self._wire = wire
        named = base64.b64encode(key.encode()).decode()
        self._acquire = request("POST", "/v3/lock/lock", {"name": named, "lease": lease})
        self._held = ""

    async def acquire(self) -> None:
        self._held = json.loads(content_of(await self._wire.ask(self._acquire), "lock"))["key"]

    async def release(self) -> None:
        content_of(await self._wire.ask(request("POST", "/v3/lock/unlock", {"key": self._held})), "unlock")


def of_etcd(address: tuple[str, int]) -> NewLocker:
    async def new(key: str, number: int) -> Locker:
        wire = await connect(address)
        granted = json.loads(content_of(await wire.ask(request("POST", "/v3/lease/grant", {"TTL": TTL_S})), "grant"))
        return EtcdLocker(wire, key, granted["ID"])

    return new


# --- Redis ------------------------------------------------------------------------------------------------------------


class RedisLocker:
    """On one server, or on the majority of several."""

    def __init__(self, wires: list[Wire], key: str, owner: str) -> None:
        self._wires = wires
        self._set = spoken("SET", key, owner, "NX", "PX", str(TTL_S * 1_000))
        self._delete = spoken("EVAL", RELEASE, "1", key, owner)

    async def acquire(self) -> None:
        while True:
            given = await self._all(self._set)
            if given.count(b"+OK\r\n") > len(self._wires) // 2:
                return
            if len(self._wires) > 1:
                await self._all(self._delete)
            await asyncio.sleep(random.uniform(*PAUSE_S))

    async def release(self) -> None:
        if b":1\r\n" not in await self._all(self._delete):
            raise RuntimeError("Redis did not release the lock")

    async def _all(self, command: bytes) -> list[bytes]:
        if len(self._wires) == 1:
            return [await self._wires[0].ask(command)]
        return list(await asyncio.gather(*(wire.ask(command) for wire in self._wires)))


def of_redis(ports: list[int]) -> NewLocker:
    async def new(key: str, number: int) -> Locker:
        wires = [await connect(("127.0.0.1", port), line_ends) for port in ports]
        return RedisLocker(wires, key, f"c{number}")

    return new


def spoken(*words: str) -> bytes:
    parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    return f"*{len(words)}\r\n{''.join(parts)}".encode()


# --- ZooKeeper --------------------------------------------------------------------------------------------------------


class KazooLockers:
    """As many clients as are asked for, a thread and a session each."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._clients: list[Any] = []

    def pairs(self, keys: list[str], seconds: float) -> list[Held]:
        while len(self._clients) < len(keys):
            client = KazooClient(self._hosts, timeout=TTL_S)
            client.start(timeout=TTL_S)
            self._clients.append(client)
        held: list[Held] = []
        end = time.perf_counter() + seconds

        def work(client: Any, key: str) -> None:
            lock = client.Lock(f"/bench/{key}")
            while (asked := time.perf_counter()) < end:
                lock.acquire()
                granted = time.perf_counter()
                lock.release()
                held.append(Held(asked, granted, time.perf_counter()))

        threads = [
            threading.Thread(target=work, args=pair, daemon=True) for pair in zip(self._clients, keys, strict=False)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return held

    def close(self) -> None:
        for client in self._clients:
            client.stop()
            client.close()
