"""Leases as rows: forty bytes for what every lease has, and beside them, by the same slots, what few have.

Nothing here decides anything.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coordinator.machine.columns import Rows, SideTable, Slots
from coordinator.machine.limits import NEVER_MS
from coordinator.machine.timers import TimedTable

KEPT, BOUNDED, OWNED, REENTERED = 1, 2, 4, 8
"""Flags of a lease. KEPT: a task keeps it, and nothing else renews or releases it. The others say that there is
something in `extras`: an end of life, a session, further entries into a lock."""
IN_EXTRAS = BOUNDED | OWNED | REENTERED

ROW_WORDS = 5
HELD_WORD, STANDING_WORD = 2, 4
"""Where in a row's words: the generation below the owner; the state above `next`, and above that the flags. The expiry
is the first one."""
STATE_SHIFT, FLAGS_SHIFT = 32, 56


class LeaseExtras(SideTable):
    FIELDS = (("deadline_ms", "i8"), ("session", "u4"), ("previous", "u4"), ("entries", "u4"), ("unused", "u4"))

    deadline_ms: memoryview
    """Absolute end of life: no renewal goes past it."""
    session: memoryview
    """The owning session's slot plus one. Its leases are linked by `next` of their rows and `previous` (plus one)."""
    previous: memoryview
    entries: memoryview
    """How often its holder entered the lock after the first time."""


class LeaseTable(TimedTable):
    FIELDS = (
        ("expiry_ms", "i8"), ("token", "i8"), ("generation", "u4"), ("owner", "u4"), ("resource", "u4"),
        ("timer", "u4"), ("next", "u4"), ("state", "u1"), ("kind", "u1"), ("restored", "u1"), ("flags", "u1"),
    )  # fmt: skip

    token: memoryview
    owner: memoryview
    resource: memoryview
    """The name of the resource, or of the lock this lease holds."""
    kind: memoryview
    """RESOURCE or LOCK: what kind of name `resource` is."""
    flags: memoryview
    words: npt.NDArray[np.int64]
    """The rows again, ROW_WORDS words of eight bytes each: picking a word costs a third of picking a row, and a
    comparison of words does for several fields."""

    def __init__(self, max_rows: int) -> None:
        super().__init__(max_rows)
        self.extras = LeaseExtras(max_rows)

    def _adopt(self, rows: Rows) -> None:
        super()._adopt(rows)
        self.words = rows.view(np.int64)

    def release(self, slot: int) -> None:
        if self.flags[slot] & IN_EXTRAS:
            self.extras.erase(slot)
        super().release(slot)

    # --- reading the extras ---------------------------------------------------------------------------------------

    def session_of(self, slot: int) -> int:
        """The owning session's slot plus one, or 0."""
        session: int = self.extras.session[slot] if self.flags[slot] & OWNED else 0
        return session

    def sessions_of(self, slots: Slots) -> Slots:
        return self._extras_of("session", OWNED, slots, 0)

    def deadline_of(self, slot: int) -> int:
        deadline_ms: int = self.extras.deadline_ms[slot] if self.flags[slot] & BOUNDED else NEVER_MS
        return deadline_ms

    def deadlines_of(self, slots: Slots) -> npt.NDArray[np.int64]:
        return self._extras_of("deadline_ms", BOUNDED, slots, NEVER_MS)

    def entries_of(self, slot: int) -> int:
        """How often its holder entered the lock."""
        again: int = self.extras.entries[slot] if self.flags[slot] & REENTERED else 0
        return 1 + again

    def _extras_of(self, field: str, flag: int, slots: Slots, otherwise: int) -> npt.NDArray[np.int64]:
        found = np.full(len(slots), otherwise, dtype=np.int64)
        there = np.flatnonzero(self.column("flags")[slots] & flag)
        if len(there):
            found[there] = self.extras.column(field)[slots[there]]
        return found

    # --- changing them: the row was touched -----------------------------------------------------------------------

    def bound(self, slot: int, deadline_ms: int) -> None:
        if deadline_ms < NEVER_MS:
            self._put(slot, BOUNDED, "deadline_ms", deadline_ms)

    def enter(self, slot: int) -> None:
        """Its holder entered the lock once more."""
        self._put(slot, REENTERED, "entries", self.entries_of(slot))

    def leave(self, slot: int) -> None:
        """And left it once; not for the last time."""
        self._put(slot, REENTERED, "entries", self.entries_of(slot) - 2)

    def own(self, slot: int, session: int) -> None:
        self._put(slot, OWNED, "session", session)

    def disown(self, slot: int) -> None:
        self._put(slot, OWNED, "session", 0)
        self.extras.previous[slot] = 0

    def _put(self, slot: int, flag: int, field: str, value: int) -> None:
        extras = self.extras
        extras.cover(slot)
        extras.touch(slot)
        getattr(extras, field)[slot] = value
        flags = self.flags[slot]
        self.flags[slot] = flags | flag if value else flags & ~flag

    def put_extras(self, slots: Slots, session: int, deadlines_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Of new leases, which a session (0: none) will list from the last to the first. Answers their flags."""
        bounded = deadlines_ms < NEVER_MS
        flags = np.where(bounded, BOUNDED, 0).astype(np.uint8)
        rows = np.zeros(len(slots), dtype=self.extras.dtype)
        rows["deadline_ms"][bounded] = deadlines_ms[bounded]
        if session:
            flags |= OWNED
            rows["session"] = session
            rows["previous"][:-1] = slots[1:] + 1
        there = flags != 0
        if there.any():
            self.extras.cover(int(slots[there].max()))
            self.extras.touch_many(slots[there])
            self.extras.put_rows(slots[there], rows[there])
        return flags
