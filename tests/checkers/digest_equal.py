"""Equal applied index, equal state digest (I15): replicas do not diverge, through snapshots and restarts."""

from __future__ import annotations

from tests.checkers.violation import Violation
from tests.reference.register import RegisterMachine


class DigestEqual:
    def __init__(self) -> None:
        self._digests: dict[int, tuple[bytes, int]] = {}

    def check(self, name: str, machine: RegisterMachine) -> None:
        state = (machine.digest, machine.now_ms)
        known = self._digests.setdefault(machine.index, state)
        if known != state:
            raise Violation("digest_equal", f"{name} at index {machine.index} has another state than the others had")
