"""How much one entry may do of what nobody asked for by name."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.machine.columns import Slots
from coordinator.machine.levels import STEADY_BATCHES
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY, MAX_TIMER_CHECKS_PER_ENTRY
from coordinator.machine.state import State
from coordinator.machine.timers import TimerIndex

CHECKED_AT_ONCE = 2_000


@dataclass(slots=True)
class Budget:
    expiries: int = MAX_EXPIRIES_PER_ENTRY
    checks: int = MAX_TIMER_CHECKS_PER_ENTRY
    sets: bool = True
    """Whether sets of garbage are cut, which takes long however little of them."""

    def take(self, state: State, timers: TimerIndex) -> Slots:
        """The next slots to look at, as far as it goes; none: nothing is due, or it is used up."""
        most = min(CHECKED_AT_ONCE, self.expiries, self.checks)
        slots = timers.take(state.now_ms, max(0, most), steady=state.level >= STEADY_BATCHES)
        self.checks -= len(slots)
        return slots
