"""Damaged input to the ports of a real cluster: every operation over HTTP, the peer port, and gRPC.

Three times over HTTP. Strangers send anything: the state must be as before. An administrator sends bodies that the
rules refuse: as before too. A tenant sends anything to its own namespace, where something damaged may be good:
then the nodes must have come to one state. Members' own links are dialed between followers only, so that the leader
is not disturbed, and what is sealed on them is what the codec refuses: a member that lies well is no fault we tolerate.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.shots import Aim, Seen, Shooter, aims, shots
from tests.fuzz.strangers import fuzz_grpc, fuzz_peers
from tests.fuzz.target import Target, target

SHOOTERS = 24
MEMORY_GOAL = 2.0
TOLD = 3
"""Of tracebacks."""
PARTS = {"strangers": 0.2, "refused": 0.3, "tenant": 0.5}
"""Of the bytes; what has no body to refuse has more of the last."""


def fuzz_ports(size: int, seed: int = 1, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-fuzz-") as directory, target(Path(directory)) as nodes:
        return asyncio.run(_Run(nodes, size, seed, tell).all())


class _Run:
    def __init__(self, nodes: Target, size: int, seed: int, tell: Callable[[str], None]) -> None:
        self._nodes, self._size, self._seed, self._tell = nodes, size, seed, tell
        has, self._token = nodes.settle()
        self._aims = aims(has)
        self._seen = {aim.name: Seen() for aim in self._aims}
        self._steps: dict[str, Any] = {}

    async def all(self) -> dict[str, Any]:
        began = time.monotonic()
        # What any first use costs (buffers, caches) is no growth.
        await self._shoot("warm", {aim.name: min(self._size, 1 << 16) for aim in self._aims}, self._token)
        before = self._nodes.resident_kib()
        self._nodes.count_anew()
        for part in ("strangers", "refused"):
            token = None if part == "strangers" else self._nodes.root
            await self._unchanged(part, self._shoot(part, self._sizes(part), token))
        ports = {"peer": fuzz_peers, "gRPC": fuzz_grpc}
        for name, fuzz in ports.items():
            await self._unchanged(name, fuzz(self._nodes, self._size, self._seed))
        self._steps["tenant"] = await self._shoot("tenant", self._sizes("tenant"), self._token)
        revision, _, differing = await asyncio.to_thread(self._nodes.digests)
        peak = self._nodes.resident_kib("VmHWM")
        now = self._nodes.resident_kib()
        ours, library = self._nodes.traces()
        return self._report(
            {
                "seconds": round(time.monotonic() - began, 1),
                "compared_at_revision": revision,
                "digests_differ": differing,
                "resident_ratio": round(max(now[name] / before[name] for name in now), 2),
                "peak_ratio": round(max(peak[name] / before[name] for name in now), 2),
                "ended": self._nodes.ended(),
                "tracebacks": len(ours),
                "first_tracebacks": ours[:TOLD],
                "library_tracebacks": library,
                "serves": self._serves(),
            }
        )

    def _sizes(self, part: str) -> dict[str, int]:
        shares = {True: PARTS, False: {**PARTS, "refused": 0.0, "tenant": PARTS["refused"] + PARTS["tenant"]}}
        return {aim.name: round(self._size * shares[aim.shape is not None][part]) for aim in self._aims}

    async def _unchanged(self, part: str, work: Any) -> None:
        _, before, _ = await asyncio.to_thread(self._nodes.digests)
        began = time.monotonic()
        told = await work
        seconds = round(time.monotonic() - began, 1)
        _, after, differing = await asyncio.to_thread(self._nodes.digests)
        self._steps[part] = {**told, "seconds": seconds, "unchanged": before == after and not differing}
        self._tell(f"{part}: {json.dumps(self._steps[part])}")

    async def _shoot(self, part: str, sizes: dict[str, int], token: str | None) -> dict[str, Any]:
        jobs, began = iter([aim for aim in self._aims if sizes[aim.name]]), time.monotonic()
        seen = {name: Seen() for name in sizes}

        async def work(number: int) -> None:
            port = self._nodes.layout.http_base + number % 3 + 1
            shooter = Shooter(("127.0.0.1", port))
            for aim in jobs:
                await self._at(aim, shooter, sizes[aim.name], token, seen[aim.name], part == "refused")
                self._tell(f"{part} {aim.name}: {dict(seen[aim.name].statuses)}")
            shooter.close()

        await asyncio.gather(*map(work, range(SHOOTERS)))
        return self._counted(seen, part, time.monotonic() - began)

    async def _at(self, aim: Aim, shooter: Shooter, size: int, token: str | None, seen: Seen, refused: bool) -> None:
        for shot in shots(aim, token, self._seed, only_refused=refused):
            await shooter.fire(shot, seen)
            if seen.bytes >= size:
                return

    def _counted(self, seen: dict[str, Seen], part: str, seconds: float) -> dict[str, Any]:
        statuses = Counter[str]()
        for name, each in seen.items():
            statuses.update(each.statuses)
            if part != "warm":
                total = self._seen[name]
                total.bytes, total.inputs = total.bytes + each.bytes, total.inputs + each.inputs
                total.statuses.update(each.statuses)
            self._seen[name].untyped += each.untyped
        size = sum(each.bytes for each in seen.values())
        inputs = sum(each.inputs for each in seen.values())
        return {
            "bytes": size,
            "inputs": inputs,
            "answers": dict(sorted(statuses.items())),
            "seconds": round(seconds, 1),
        }

    def _serves(self) -> bool:
        """A lock can be had at every node."""
        for name in self._nodes.nodes:
            body = {"lock_key": f"after {name}", "client_id": "proof", "lease_time_ms": 1_000}
            if not self._nodes.ask("POST", "/locks/acquire", body, name)["acquired"]:
                return False
        return True

    def _report(self, told: dict[str, Any]) -> dict[str, Any]:
        untyped = [text for each in self._seen.values() for text in each.untyped]
        answers = Counter[str]()
        for each in self._seen.values():
            answers.update(each.statuses)
        wrong = sum(count for status, count in answers.items() if status[:1] == "5" and status != "503")
        endpoints = {
            name: {"bytes": each.bytes, "inputs": each.inputs, "answers": dict(sorted(each.statuses.items()))}
            for name, each in self._seen.items()
        }
        unchanged = {part: step["unchanged"] for part, step in self._steps.items() if "unchanged" in step}
        reached = (
            not told["ended"] and not told["digests_differ"] and not untyped and not wrong and told["serves"]
            and all(unchanged.values()) and told["peak_ratio"] <= MEMORY_GOAL and not told["tracebacks"]
            and not self._steps["gRPC"]["wrong"]
        )  # fmt: skip
        least = min(each.bytes for each in self._seen.values())
        ports = {name: self._steps[name]["bytes"] for name in ("peer", "gRPC")}
        total = sum(each.bytes for each in self._seen.values()) + sum(ports.values())
        return {
            "reached": bool(reached), "seed": self._seed, "bytes": total, "operations": len(endpoints),
            "least_bytes_an_operation": least, "port_bytes": ports, "answers": dict(sorted(answers.items())),
            "wrong_5xx": wrong, "untyped": untyped[:5], "unchanged": unchanged, **told, "steps": self._steps,
            "endpoints": endpoints,
        }  # fmt: skip


def to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
