"""What is looked at on the nodes themselves, while a run lasts and when its faults are over.

Leases and locks that were acknowledged all along are there still (I9), short ones are not (I5), no term had two leaders
(I16), and all nodes have the same state at the same revision (I15).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from tests.chaos.containers import Containers
from tests.chaos.digests import compare
from tests.checkers.violation import Violation
from tests.robustness.clients import Client
from tests.robustness.leaseclients import hex_id
from tests.robustness.processes import Processes
from tests.robustness.shortones import ShortOnes
from tests.waiting import until

KEPT_MS = 24 * 3_600_000
AT_ONCE = 5
OWNER, PREFIX = "keeper", "kept/"
PATIENCE_S = 60.0
"""For a cluster that nothing happens to any more."""


class Kept(Client):
    """Leases and locks for longer than any run, more and more of them, which nobody renews and nobody gives back."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.leases: dict[str, int] = {}
        self.tokens: dict[str, int] = {}

    async def add(self, number: int) -> None:
        """Some more; those whose outcome is not told do not count."""
        resources = [f"{PREFIX}{number}.{place}" for place in range(AT_ONCE)]
        body = {"client_id": OWNER, "lease_duration_ms": KEPT_MS, "resource_ids": resources}
        leased = await self.change("/api/v1/leases/acquire-batch", body, AT_ONCE)
        if leased.status == 200:
            self.leases |= {name: int(each, 16) for name, each in zip(resources, leased.body["lease_ids"], strict=True)}
        key = f"{PREFIX}{number}"
        asked = {"lock_key": key, "client_id": OWNER, "lease_time_ms": KEPT_MS}
        held = await self.change("/api/v1/locks/acquire", asked)
        if held.status == 200:
            self.tokens[key] = int(held.body["fencing_token"])

    async def check(self, processes: Processes) -> None:
        """On every node: each is asked by itself."""
        for node in processes.names:
            await self._check_leases(processes, node)
            listed = await _answer(processes, node, f"/api/v1/locks?prefix={quote(PREFIX, safe='')}&limit=1000")
            tokens = {lock["lock_key"]: lock["fencing_token"] for lock in listed["locks"] if lock["holder"] == OWNER}
            if lost := {key for key, token in self.tokens.items() if tokens.get(key) != token}:
                raise Violation("durable", f"{node} has lost locks that were acknowledged: {sorted(lost)} (I9)")

    async def _check_leases(self, processes: Processes, node: str) -> None:
        body = {"lease_ids": [hex_id(number) for number in self.leases.values()]}
        found = await _answer(processes, node, "/api/v1/leases/lookup", body)
        active = {int(lease["lease_id"], 16) for lease in found["leases"] if lease["state"] == "ACTIVE"}
        if lost := {name for name, number in self.leases.items() if number not in active}:
            raise Violation("durable", f"{node} has lost leases that were acknowledged: {sorted(lost)} (I9)")


class Leaders:
    """Who said that it leads, in which term; and that it has the leader's lease."""

    def __init__(self) -> None:
        self.of_term: dict[int, str] = {}
        self.leases = 0
        """How often somebody said that it has it."""
        self._newest = (0, "", 0.0)
        """Of those the one of the latest term: who, and when it had said so."""

    def has_lease(self, name: str, term: int, asked_s: float, told_s: float) -> None:
        """Once somebody of a later term has said so, nobody who is asked after that says it of an earlier one."""
        self.leases += 1
        latest, holder, since_s = self._newest
        if term < latest and asked_s > since_s:
            said = f"{name} says that it has the lease of term {term}, after {holder} had that of {latest} (I16)"
            raise Violation("one_valid_lease", said)
        if term > latest:
            self._newest = term, name, told_s

    def told(self, views: Mapping[str, Mapping[str, Any] | None]) -> None:
        for name, view in views.items():
            if view is None or view["leader"] != name:
                continue
            known = self.of_term.setdefault(int(view["term"]), name)
            if known != name:
                raise Violation("one_leader_per_term", f"{known} and {name} both lead in term {view['term']} (I16)")


async def short_ones_end(processes: Processes, short: ShortOnes, grace_s: Callable[[], float]) -> Counter[str]:
    """Nobody renews them any more: with a stable quorum they go. How many were granted and left to, by kind."""

    async def ask(node: str, path: str) -> dict[str, Any]:
        return await _answer(processes, node, path)

    await short.end(processes.names, ask, grace_s)
    return short.left


class _Nodes:
    """As `compare` asks of containers."""

    def __init__(self, processes: Processes) -> None:
        self.nodes = processes.names
        self._places = {name: processes.address(name) for name in self.nodes}

    def endpoint(self, node: str) -> str:
        host, port = self._places[node]
        return f"{host}:{port}"


async def equal_digests(processes: Processes, directory: Path) -> int:
    """The revision at which all nodes had the same state (I15)."""
    nodes = cast(Containers, _Nodes(processes))
    revision, found = await asyncio.to_thread(compare, nodes, directory)
    if found:
        raise Violation("digest_equal", "; ".join(found))
    return revision


async def _answer(processes: Processes, node: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def answered() -> bool:
        answer = await processes.ask(node, path, body)
        found.update(answer or {})
        return answer is not None

    await until(answered, f"{node} to answer {path}", PATIENCE_S)
    return found
