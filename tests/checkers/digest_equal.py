"""Equal applied index, equal state digest (I15): replicas do not diverge, through snapshots and restarts."""

from __future__ import annotations

from tests.checkers.violation import Violation


class DigestEqual:
    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self.checks = 0

    def check(self, name: str, revision: int, digest: bytes) -> None:
        self.checks += 1
        if self._digests.setdefault(revision, digest) != digest:
            raise Violation("digest_equal", f"{name} at {revision} has another state than the others had")
