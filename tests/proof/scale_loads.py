"""Ten times what a cluster can do, with a thousand slow clients besides; and entries of every awkward size."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import socket
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import bench.overload as greed
from bench.holdfast import ROOT, Holdfast
from bench.wire import Address, connect, request
from cluster.options import MIB, Limits
from coordinator.clientlimits import BODY_BYTES, HEAD_BYTES
from coordinator.http.operations import WRITE_TIMEOUT_MS
from tests.processes.fleet import Fleet
from tests.reference.register import command
from tests.robustness.record import quantile
from tests.waiting import until

ROUNDS, QUIET_S, BESIDE_S = 3, 20.0, 58.0
"""A siege of a minute, its first seconds included: in a short one, the p99 would be of the moment in which all come."""
CALM_LOOK_S, CALM_LOOKS, CALM_MOST_S, CALM_RATIO = 1.0, 2, 10.0, 1.5
"""Calm: so many looks in a row of which the median is no more than so many times the best of the run. A siege leaves
sockets to be closed and requests to be forgotten, and a node that has just started has its caches to fill: what is
quiet only by name would excuse what comes after it. A round that is not calm in time is none to compare with."""
SLOW, HALF_OPEN = 1_000, 128
GOAL_RATIO = 2.0
GROWS_NO_MORE = 1.1
"""What the last siege may take of memory, as a multiple of the one before, which has filled what is kept of ordinary
work and of refusals: more would be a leak."""
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
    descriptors, resident = _descriptors(pid), 0
    seen, most = list[dict[str, Any]](), 0
    async with greed.connected(address) as wires:
        calm = Calm(lambda: greed.healthy(wires, CALM_LOOK_S))
        for _ in range(rounds):
            calm_s = await calm.wait(lambda: _descriptors(pid) <= descriptors + SPARE_DESCRIPTORS)
            quiet, _statuses = await greed.healthy(wires, QUIET_S)
            # As with times: a node that has just started has yet to fill what it keeps of ordinary work.
            resident = resident or _resident_kib(pid)
            with contextlib.ExitStack() as held, greed.asking_for_everything(address) as greedy:
                _besiege(held, address, peer, slow)
                newcomer = asyncio.create_task(_first_answer(address))
                onset, first = await greed.healthy(wires, greed.ONSET_S)
                most = max(most, _descriptors(pid))
                during, later = await greed.healthy(wires, BESIDE_S)
                taken = {"resident_kib": _resident_kib(pid)}
            spent = {"quiet_ms": quiet, "onset_ms": onset, "beside_ms": onset + during, "calm_s": calm_s}
            told = {**spent, "healthy": dict(first + later), "newcomer_s": await newcomer}
            seen.append({**told, **taken, "greedy": greedy})
    await until(lambda: _descriptors(pid) <= descriptors + SPARE_DESCRIPTORS, "its descriptors back", 60)
    return overload_verdict(seen, most, descriptors, resident, slow)


class Calm:
    """`look`: milliseconds of some calls, and how they ended."""

    def __init__(self, look: Callable[[], Awaitable[tuple[list[float], object]]]) -> None:
        self._look = look
        self._best_ms = math.inf

    async def wait(self, over: Callable[[], bool], most_s: float = CALM_MOST_S) -> float | None:
        """Seconds until the siege is `over` and the node calm; None if it was not within `most_s`."""
        began, last_ms = time.monotonic(), deque[float](maxlen=CALM_LOOKS)
        while time.monotonic() - began < most_s:
            spent_ms, _ = await self._look()
            last_ms.append(quantile(spent_ms, 0.5))
            self._best_ms = min(self._best_ms, *last_ms)
            if over() and len(last_ms) == CALM_LOOKS and max(last_ms) <= CALM_RATIO * self._best_ms:
                return round(time.monotonic() - began, 1)
        return None


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


def times_quiet(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """What the healthy feel beside a siege, as a multiple of the quiet: of the middle rounds, and of all calls.

    The quiet p99 of one round is of some hundred calls, and is noise on a machine that others use: so no round is
    compared with its own. Quiet is what began calm; without any such round there is nothing to compare with.
    """
    calm = [each for each in seen if each["calm_s"] is not None]
    figures: dict[str, Any] = {"calm_after_s": [each["calm_s"] for each in seen]}
    of_all: dict[str, dict[str, float]] = {}
    for name, rounds in (("quiet", calm), ("beside", seen), ("onset", seen)):
        figures[f"{name}_p99_ms"] = [greed.percentiles(each[f"{name}_ms"])["p99"] for each in rounds]
        of_all[name] = greed.percentiles([ms for each in rounds for ms in each[f"{name}_ms"]])
        figures[f"{name}_p99_ms_of_all"] = of_all[name]["p99"]

    def ratio(one: float, other: float) -> float | None:
        return round(one / other, 2) if calm else None

    middle = {name: quantile(figures[f"{name}_p99_ms"], 0.5) for name in of_all}
    return {
        "p99_ratio": ratio(middle["beside"], middle["quiet"]),
        "p99_ratio_of_all": ratio(of_all["beside"]["p99"], of_all["quiet"]["p99"]),
        "p50_ratio_of_all": ratio(of_all["beside"]["p50"], of_all["quiet"]["p50"]),
        "p99_ratio_of_the_first_seconds": ratio(middle["onset"], middle["quiet"]),
        **figures,
    }


def refusals_in_time(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """Who comes again at once is read when the time is over for which it was told to stay away; then it is as the
    others are. The worst p99 of all rounds counts; the longest of all is told."""
    greedy = [each["greedy"] for each in seen]
    return {
        "refused": sum(each["statuses"].get("429", 0) for each in greedy),
        "refused_too_early_again": sum(each["held"] for each in greedy),
        "refused_p99_ms": max(each["refused_ms"]["p99"] for each in greedy),
        "refused_longest_ms": max(each["refused_ms"]["p100"] for each in greedy),
        "refused_again_p99_ms_after_told": max(each["after_ms"]["p99"] for each in greedy),
        "refused_again_longest_ms_after_told": max(each["after_ms"]["p100"] for each in greedy),
        "deadline_ms": WRITE_TIMEOUT_MS,
    }


def overload_verdict(
    seen: list[dict[str, Any]], most: int, descriptors: int, resident: int, slow: int
) -> dict[str, Any]:
    felt, refused = times_quiet(seen), refusals_in_time(seen)
    served = all(set(each["healthy"]) == {200} for each in seen)
    broken = [text for each in seen for text in each["greedy"]["broken"]]
    resident_kib = [each["resident_kib"] for each in seen]
    connections = slow + greed.GREEDY_CONNECTIONS + greed.HEALTHY_CONNECTIONS + HALF_OPEN
    cap, memory_cap = descriptors + connections + SPARE_DESCRIPTORS, resident + connections * HEAD_BYTES // 1024
    leaks = resident_kib[-1] > GROWS_NO_MORE * resident_kib[-2:][0]
    both = felt["p99_ratio"], felt["p99_ratio_of_all"]
    unnoticed = all(ratio is not None and ratio <= GOAL_RATIO for ratio in both)
    in_time = max(refused["refused_p99_ms"], refused["refused_again_p99_ms_after_told"]) < WRITE_TIMEOUT_MS
    return {
        "greedy_connections": greed.GREEDY_CONNECTIONS,
        "slow_sockets": slow,
        "half_open_peers": HALF_OPEN,
        **felt,
        "newcomer_s": [each["newcomer_s"] for each in seen],
        "healthy_all_served": served,
        **refused,
        "descriptors_most": most,
        "descriptors_cap": cap,
        "resident_kib_before": resident,
        "resident_kib": resident_kib,
        "resident_kib_cap": memory_cap,
        "goal": (
            f"p99 of the healthy ≤ {GOAL_RATIO:g} × that of quiet rounds that began calm, in sieges of a minute: the "
            f"middle one, and all calls; 99 % refused within the deadline, who was told to stay away from then on; "
            f"memory ≤ that after the first quiet round and, for each connection, the {HEAD_BYTES >> 10} KiB that it "
            f"may send before its request is known; in the last siege ≤ {GROWS_NO_MORE:g} × the one before (I18)"
        ),
        "reached": bool(
            unnoticed and served and refused["refused"] and refused["refused_too_early_again"] and in_time
            and not broken and not leaks and max(resident_kib) <= memory_cap and most <= cap
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
