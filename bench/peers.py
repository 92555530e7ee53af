"""Locks of others, asked by the same client as ours: acquire and release, one pair at a time for each client.

etcd, three nodes, through its JSON gateway: a lease a client granted once, then a transaction that puts the key if it
is not there, and a delete. Redis, one node with the log synced on every write: SET NX PX, and the script that releases
only what is one's own. Redis replicates nothing here, so it does less.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.etcd import Etcd, EtcdMissing, require
from bench.load import repeat, summary
from bench.wire import Wire, connect, content_of, line_ends, request
from tests.processes.fleet import free_port
from tests.waiting import wait_until

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
TTL_S = 60

Pair = Callable[[int], Awaitable[None]]


async def etcd_locks(directory: Path, clients: int, seconds: float) -> dict[str, float]:
    etcd = Etcd(directory)
    try:
        address = "127.0.0.1", etcd.leader_port()
        wires = [await connect(address) for _ in range(clients)]
        pairs = [await _etcd_pair(wire, number) for number, wire in enumerate(wires)]
        return await _measured(pairs, clients, seconds)
    finally:
        etcd.close()


async def _etcd_pair(wire: Wire, number: int) -> Pair:
    def coded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    granted = json.loads(content_of(await wire.ask(request("POST", "/v3/lease/grant", {"TTL": TTL_S})), "grant"))
    key = coded(f"lock-{number}")
    put = {"key": key, "value": coded(f"c{number}"), "lease": granted["ID"]}
    absent = {"target": "CREATE", "key": key, "create_revision": 0}
    acquire = request("POST", "/v3/kv/txn", {"compare": [absent], "success": [{"request_put": put}]})
    release = request("POST", "/v3/kv/deleterange", {"key": key})

    async def pair(_: int) -> None:
        if not json.loads(content_of(await wire.ask(acquire), "acquire")).get("succeeded"):
            raise RuntimeError("etcd did not give the lock")
        if json.loads(content_of(await wire.ask(release), "release")).get("deleted") != "1":
            raise RuntimeError("etcd did not release the lock")

    return pair


async def redis_locks(directory: Path, clients: int, seconds: float) -> dict[str, float]:
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
    options += ["--appendfsync", "always", "--dir", str(directory)]
    process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)  # noqa: ASYNC220 - before any load
    try:
        ping = ["redis-cli", "-p", str(port), "ping"]
        wait_until(lambda: b"PONG" in subprocess.run(ping, capture_output=True, check=False).stdout, 10, "Redis")
        wires = [await connect(("127.0.0.1", port), line_ends) for _ in range(clients)]
        pairs = [_redis_pair(wire, number) for number, wire in enumerate(wires)]
        return await _measured(pairs, clients, seconds)
    finally:
        process.kill()
        process.wait()


def _redis_pair(wire: Wire, number: int) -> Pair:
    acquire = _spoken("SET", f"lock-{number}", f"c{number}", "NX", "PX", str(TTL_S * 1000))
    release = _spoken("EVAL", RELEASE, "1", f"lock-{number}", f"c{number}")

    async def pair(_: int) -> None:
        if await wire.ask(acquire) != b"+OK\r\n" or await wire.ask(release) != b":1\r\n":
            raise RuntimeError("Redis did not give or release the lock")

    return pair


def _spoken(*words: str) -> bytes:
    parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    return f"*{len(words)}\r\n{''.join(parts)}".encode()


async def _measured(pairs: list[Pair], clients: int, seconds: float) -> dict[str, float]:
    async def work(number: int) -> None:
        await pairs[number](number)

    await repeat(clients, min(0.5, seconds), work)
    return summary(await repeat(clients, seconds, work), clients)


def installed() -> dict[str, str]:
    """The versions of the peers there are; installs Debian's packages when they are missing and this is root."""
    found = {}
    try:
        found["etcd"] = require()
    except EtcdMissing as error:
        print(error)
    if shutil.which("redis-server") is None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "redis-server"], check=False)
    if shutil.which("redis-server") is None:
        print("install the package redis-server to compare with Redis")
    else:
        found["redis"] = subprocess.run(
            ["redis-server", "-v"], capture_output=True, text=True, check=True
        ).stdout.split()[2]
    return found
