"""Every unreachable set, cycles included, is reclaimed within K rounds after references stop changing (I7)."""

from __future__ import annotations

from collections.abc import Iterable

from tests.checkers.reachable import WatchedMachine
from tests.checkers.violation import Violation


def check(machines: Iterable[WatchedMachine]) -> None:
    """After those rounds."""
    for machine in machines:
        if left := machine.garbage():
            raise Violation("garbage_goes", f"{left} cannot be reached and are not reclaimed (I7)")
