"""Equal applied index, equal state digest (I15): replicas do not diverge, through snapshots and restarts."""

from __future__ import annotations

import random
from collections.abc import Sequence

from coordinator.machine.machine import Machine
from coordinator.service import Replica
from tests.checkers.violation import Violation

RESTORED_AFTER = (1, 4, 16, 64)
"""Entries. What a copy has not forgotten may hide for a while what it should have forgotten."""


class DigestEqual:
    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self.checks = 0

    def check(self, name: str, revision: int, digest: bytes) -> None:
        self.checks += 1
        if self._digests.setdefault(revision, digest) != digest:
            raise Violation("digest_equal", f"{name} at {revision} has another state than the others had")


class RestoredCopy:
    """A replica beside the nodes that is restored again and again from the snapshot of whoever applies an entry first.

    Nodes restore seldom, and each goes on for long: that one has something which no snapshot tells of, and which
    decides something all the same, would hardly be seen by comparing them.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._copy: Machine | None = None
        self._entries = 0
        self._newest = 0
        self.restored = 0

    def follow(self, replica: Machine | Replica, revision: int, now_ms: int, commands: Sequence[bytes]) -> None:
        """After a replica has applied the entry."""
        if revision <= self._newest:
            return
        self._newest = revision
        if self._copy is not None:
            self._copy.apply(revision, now_ms, commands)
        self._entries -= 1
        if self._entries <= 0:
            self._compare(replica)
            self._restore(replica)

    def _compare(self, replica: Machine | Replica) -> None:
        machine = replica.machine if isinstance(replica, Replica) else replica
        if self._copy is not None and self._copy.digest() != machine.digest():
            raise Violation("digest_equal", f"a restored copy at {self._newest} has another state than the node had")

    def _restore(self, replica: Machine | Replica) -> None:
        self._copy = Machine()
        self._copy.restore(replica.freeze().chunks())
        self._entries = self._rng.choice(RESTORED_AFTER)
        self.restored += 1
