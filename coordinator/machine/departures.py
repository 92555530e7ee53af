"""Resources that are gone, many at once: what `resources.forget` does for one, for as little as each may cost.

A forgotten graph can be of any size, and all of it passes through here while others wait for their entry.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from coordinator.machine import tombstones
from coordinator.machine.columns import Slots
from coordinator.machine.graph import release_many
from coordinator.machine.levels import FORMERS
from coordinator.machine.namespaces import RESOURCES, Namespace
from coordinator.machine.state import SLOT_MASK, State


def forget_many(state: State, namespace: Namespace, slots: Slots) -> None:
    """All of one namespace, each given once."""
    table, names = state.resources, state.names
    numbers = slots.tolist()
    if state.copies.held:
        for slot in numbers:
            tombstones.leave(state, slot)
    namespace.used[RESOURCES] -= len(slots)
    for slot in numbers:
        state.resource_index.remove(state.resource_hash(slot), slot)
    rows = table.rows.take(slots)
    own = rows["name"].astype(np.int64)
    names.touch_many(own)
    names.column("registered")[own] = 0
    shared = Counter((rows["worker"][rows["worker"] != 0] - 1).tolist())
    for field in ("provider", "kind"):
        shared.update(rows[field].tolist())
    for name, times in shared.items():
        names.drop(name, times)
    for name in own.tolist():
        names.drop(name)
    if state.level >= FORMERS:
        state.formers.leave_many(slots, namespace.number, rows["generation"])
    shifts = np.where(rows["restored"] != 0, state.generation_shift, 0)
    generations = rows["generation"].astype(np.int64) + 1 + shifts & SLOT_MASK
    release_many(table, slots, generation=np.maximum(generations, 1), timer=rows["timer"])
    if state.reasons:
        for slot in numbers:
            state.reasons.pop(slot, None)
