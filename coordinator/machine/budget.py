"""How much one entry may do of what nobody asked for by name."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY, MAX_TIMER_CHECKS_PER_ENTRY


@dataclass(slots=True)
class Budget:
    expiries: int = MAX_EXPIRIES_PER_ENTRY
    checks: int = MAX_TIMER_CHECKS_PER_ENTRY
    sets: bool = True
    """Whether sets of garbage are cut, which takes long however little of them."""
