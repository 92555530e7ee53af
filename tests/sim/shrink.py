"""From a failing plan to a smaller one that fails alike: faults are taken out, halves first, then one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.sim.plan import Fault, Plan

Fails = Callable[[Plan], bool]


def shrink(plan: Plan, fails: Fails, *, tries: int = 200) -> Plan:
    """The smallest plan found within so many runs; `fails` says whether a plan still shows the failure."""
    kept = list(plan.faults)
    size = max(1, len(kept) // 2)
    while tries > 0 and kept:
        shorter = None
        for start in range(0, len(kept), size):
            if tries == 0:
                break
            tries -= 1
            candidate = _without(kept, start, size)
            if fails(plan.with_faults(candidate)):
                shorter = candidate
                break
        if shorter is not None:
            kept = shorter
            size = min(size, max(1, len(kept) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    return plan.with_faults(kept)


def _without(faults: Sequence[Fault], start: int, size: int) -> list[Fault]:
    return [*faults[:start], *faults[start + size :]]
