"""Ten times what a cluster can do, with a thousand slow clients besides; and entries of every awkward size."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import bench.overload as greed
from bench.holdfast import ROOT, Holdfast
from bench.wire import Address, connect, request
from cluster.options import MIB, Limits
from coordinator.clientlimits import BODY_BYTES
from coordinator.http.operations import WRITE_TIMEOUT_MS
from tests.processes.fleet import Fleet
from tests.reference.register import command
from tests.robustness.record import quantile
from tests.waiting import until

ROUNDS, QUIET_S, BESIDE_S = 5, 8.0, 10.0
SLOW, HALF_OPEN = 1_000, 128
GOAL_RATIO, MEMORY_GOAL = 2.0, 2.0
SPARE_DESCRIPTORS = 100
"""Of journal, links and what else a node opens by itself."""
BLOCK = 64 << 10
BLOCKS = (1, 2, 3, 4, 8)
COMMAND_S, TRIES = 30.0, 5


# --- overload ---------------------------------------------------------------------------------------------------------


def _resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _dial(held: contextlib.ExitStack, address: Address, said: bytes) -> socket.socket:
    made = held.enter_context(socket.create_connection(address, 30))
    made.sendall(said)
    return made


async def overload(nodes: Holdfast, rounds: int = ROUNDS, slow: int = SLOW) -> dict[str, Any]:
    leader = nodes.leader()
    address = await greed.prepared(nodes)
    pid = nodes.processes[leader].pid
    peer = ("127.0.0.1", _peer_port(nodes, leader))
    descriptors, resident = _descriptors(pid), _resident_kib(pid)
    seen, most = list[dict[str, Any]](), {"descriptors": 0, "resident_kib": 0}
    async with greed.connected(address) as wires:
        for _ in range(rounds):
            quiet, _statuses = await greed.healthy(wires, QUIET_S)
            with contextlib.ExitStack() as held, greed.asking_for_everything(address) as greedy:
                _besiege(held, address, peer, slow)
                newcomer = asyncio.create_task(_first_answer(address))
                onset, first = await greed.healthy(wires, greed.ONSET_S)
                most["descriptors"] = max(most["descriptors"], _descriptors(pid))
                during, later = await greed.healthy(wires, BESIDE_S)
                most["resident_kib"] = max(most["resident_kib"], _resident_kib(pid))
            p99s = [greed.percentiles(each)["p99"] for each in (quiet, onset + during, onset)]
            ratio, at_first = (round(each / p99s[0], 2) for each in p99s[1:])
            told = {"ratio": ratio, "onset": at_first, "quiet_ms": p99s[0], "healthy": dict(first + later)}
            seen.append({**told, "greedy": greedy, "newcomer_s": await newcomer})
    await until(lambda: _descriptors(pid) <= descriptors + SPARE_DESCRIPTORS, "its descriptors back", 60)
    return overload_verdict(seen, most, descriptors, resident, slow)


def _besiege(held: contextlib.ExitStack, address: Address, peer: Address, slow: int) -> None:
    for number in range(slow):
        _dial(held, address, b"POST /api/v1/locks/acquire HTTP/1.1\r\nHost: x\r\nX-Slow: "[: 10 + number % 16])
    for _ in range(HALF_OPEN):
        _dial(held, peer, b"\x00")


async def _first_answer(address: Address) -> float:
    """Seconds until somebody who comes just then has one: all those that came before are let in before."""
    began = time.monotonic()
    wire = await connect(address)
    await wire.ask(greed.acquire("healthy", "newcomer"))
    wire.close()
    return round(time.monotonic() - began, 2)


def _peer_port(nodes: Holdfast, number: int) -> int:
    view = nodes.cluster(number) or {"members": []}
    return next(int(each["peer"].rpartition(":")[2]) for each in view["members"] if each["id"] == f"n{number}")


def overload_verdict(
    seen: list[dict[str, Any]], most: dict[str, int], descriptors: int, resident: int, slow: int
) -> dict[str, Any]:
    ratio = quantile([each["ratio"] for each in seen], 0.5)
    refused_ms = max(each["greedy"]["refused_ms"]["p99"] for each in seen)
    refused = sum(each["greedy"]["statuses"].get("429", 0) for each in seen)
    served = all(set(each["healthy"]) == {200} for each in seen)
    broken = [text for each in seen for text in each["greedy"]["broken"]]
    grown = most["resident_kib"] / resident
    cap = descriptors + slow + greed.GREEDY_CONNECTIONS + greed.HEALTHY_CONNECTIONS + HALF_OPEN + SPARE_DESCRIPTORS
    return {
        "greedy_connections": greed.GREEDY_CONNECTIONS,
        "slow_sockets": slow,
        "half_open_peers": HALF_OPEN,
        "p99_ratio": ratio,
        "ratios": [each["ratio"] for each in seen],
        "ratios_of_the_first_seconds": [each["onset"] for each in seen],
        "quiet_p99_ms": [each["quiet_ms"] for each in seen],
        "newcomer_s": [each["newcomer_s"] for each in seen],
        "healthy_all_served": served,
        "refused": refused,
        "refused_p99_ms": refused_ms,
        "deadline_ms": WRITE_TIMEOUT_MS,
        "descriptors_most": most["descriptors"],
        "descriptors_cap": cap,
        "memory_ratio": round(grown, 2),
        "goal": f"p99 of the healthy ≤ {GOAL_RATIO:g} × quiet, refused in time, memory ≤ {MEMORY_GOAL:g} × (I18)",
        "reached": bool(
            ratio <= GOAL_RATIO and served and refused and refused_ms < WRITE_TIMEOUT_MS and not broken
            and grown <= MEMORY_GOAL and most["descriptors"] <= cap
        ),
    }  # fmt: skip


# --- entries ----------------------------------------------------------------------------------------------------------


def sized(size: int, key: str = "k") -> tuple[str, bytes]:
    """A key, and a command of exactly `size` bytes for it, which no other of this run equals."""
    seed = hashlib.sha256(f"{key} {size}".encode()).digest()
    value = seed * (size // len(seed) + 1)
    # No value gives some sizes, as a length takes more bytes from 64 KiB on: then the key is a little longer.
    for name in (f"{key}{size}", f"{key}{size}__"):
        for shorter in range(len(name) + 5, len(name) + 20):
            made = command("put", name, value[: size - shorter])
            if len(made) == size:
                return name, made
    raise AssertionError(f"no command of {size} bytes")


async def entries(nodes: Holdfast, blocks: tuple[int, ...] = BLOCKS) -> dict[str, Any]:
    """The cluster's own stack with commands of any size; and what the API says to the largest."""
    biggest = Limits().command_bytes
    sizes = [block * BLOCK + more for block in blocks for more in range(-60, 2)] + [4 * MIB, biggest]
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".entries-", suffix=".tmp") as directory:
        fleet = Fleet(Path(directory))
        try:
            told = await _written(fleet, sizes, biggest)
        finally:
            await fleet.close_clients()
            fleet.close()
    wire = await connect(nodes.address(1))
    answer = await wire.ask(request("POST", "/api/v1/locks/acquire", bytes(BODY_BYTES + 1)))
    wire.close()
    over_http = {"status": int(answer[9:12]), "typed": b'"code"' in answer and b'"outcome"' in answer}
    good = (
        told["missing"] == [] and told["over_the_limit"] == "too_large" and over_http == {"status": 413, "typed": True}
    )
    return {
        **told,
        "body_over_the_limit": over_http,
        "goal": f"all delivered up to {biggest >> 20} MiB, there after kill -9 of all; more is refused by name",
        "reached": bool(good),
    }


async def _written(fleet: Fleet, sizes: list[int], biggest: int) -> dict[str, Any]:
    fleet.start()
    denied, again = [], 0
    for place, size in enumerate(sizes):
        answer, tries = await _proposed(fleet, sized(size)[1])
        again += tries - 1
        if answer[0] != "committed":
            denied.append((size, answer))
        if place == len(sizes) // 2:
            # Half of them come back from a snapshot, half from the journal behind it.
            for name in fleet.names:
                await fleet.clients[name].call("snapshot", deadline=COMMAND_S)
    over, _ = await _proposed(fleet, sized(biggest + 1, "over")[1])
    await fleet.converged()
    await fleet.close_clients()
    fleet.kill()
    fleet.start()
    await fleet.leader()
    await fleet.converged()
    missing = await _missing(fleet, sizes)
    return {
        "entries": len(sizes), "smallest": min(sizes), "biggest": max(sizes), "denied": denied[:3], "missing": missing,
        "asked_again": again,
        "over_the_limit": over[1],
    }  # fmt: skip


async def _proposed(fleet: Fleet, made: bytes) -> tuple[Any, int]:
    """The answer, and at which try. On a busy machine a large entry may outlast its leader, who then says so."""
    tries = 0
    while True:
        tries += 1
        client = fleet.clients[await fleet.leader()]
        answer = await client.call("propose", made, COMMAND_S, deadline=COMMAND_S)
        if answer[0] == "committed" or answer[1] not in ("replaced", "not_leader", "no_leader") or tries == TRIES:
            return answer, tries


async def _missing(fleet: Fleet, sizes: list[int]) -> list[str]:
    """Of every node, the sizes that are not there as they were written."""
    found = []
    for name in fleet.names:
        for size in sizes:
            key, made = sized(size)
            answer = await fleet.clients[name].call("read", key, COMMAND_S, deadline=COMMAND_S)
            if answer[0] != "ok" or command("put", key, answer[1]) != made:
                found.append(f"{size} on {name}")
    return found
