"""A backup's state made fit to go on with: nothing that may have been issued since the backup is issued again.

After the backup was taken its cluster went on: it drew fencing tokens, revisions and ids that the backup does not know
of. Clients, databases and disks still have them. So a restored state begins far ahead of all of them:

- *Tokens, revisions and waiters* are counters. They go on from `at_s << AHEAD_SHIFT`, where `at_s` is the wall-clock
  second of the restore. A cluster that draws less than 2^20 (a million) a second never gets ahead of that line, however
  old the backup is, however often the same backup was restored before; and one that was never restored has drawn far
  fewer than the seconds since 1970 times a million. The line passes 2^53, up to where every reader of JSON counts
  exactly, in the year 2242. A moment that is not ahead of what the backup has is refused, never adjusted: two restores
  of one backup would come out the same.
- *Ids of leases, sessions and resources* are a slot and its generation, and hot slots count fast. A restore shifts the
  generations of all slots by a number that is scattered over all 2^32: an id from after the backup is unknown, unless
  its slot was used again so often that it came just as far (n uses: n in 2^32 cases). What is alive keeps its id, and
  the shift is made when it ends (`state.next_generation`).
- *Holders of copies* are removed: what they registered and dropped since is not known, so each of them is fenced until
  it has verified every copy it has.
- *Access tokens* are those of the backup, also those that were revoked after it: the trail says when it was restored.
- *Waiters* leave: the requests that waited are gone, and a lock must not be granted to nobody.

Time goes on where the backup left it: what remained of each lease then remains now.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from coordinator.machine.columns import FREE
from coordinator.machine.faults import require
from coordinator.machine.holders import fence_all
from coordinator.machine.state import SLOT_MASK, State
from coordinator.machine.timers import TimedTable
from coordinator.machine.trail import DONE, NOBODY
from coordinator.machine.waiters import dismiss, settle

AHEAD_SHIFT = 20
MAX_AT_S = (1 << 33) - 1


class NotAhead(ValueError):
    """The moment of the restore is not ahead of what the backup has issued."""


def begin_anew(state: State, at_s: int) -> None:
    """Called once, on a state that was just read from a backup. The same on every node that is given the same."""
    require(0 <= at_s <= MAX_AT_S, "a restore at an impossible time")
    line = at_s << AHEAD_SHIFT
    if max(state.last_token, state.revision, state.last_waiter) >= line:
        raise NotAhead("the moment of the restore is before what the backup has seen; is the clock of this host right?")
    _dismiss_waiters(state)
    fence_all(state)
    state.last_token = state.revision = state.last_waiter = line
    state.generation_shift = _scattered(at_s)
    for table in timed_tables(state):
        _shift(table, state.generation_shift)
    state.access.trail.add(line, state.now_ms, NOBODY, "cluster.restore", "", "", DONE)
    state.events.clear()


def timed_tables(state: State) -> list[TimedTable]:
    """Every table whose slots and generations are ids that clients have."""
    return [each for each in vars(state).values() if isinstance(each, TimedTable)]


def _scattered(at_s: int) -> int:
    """Never 0. Restores a second apart are as far from each other as any."""
    return int.from_bytes(blake2b(at_s.to_bytes(8, "little"), digest_size=4).digest(), "little") or 1


def _shift(table: TimedTable, shift: int) -> None:
    slots = np.arange(table.used, dtype=np.int64)
    table.touch_many(slots)
    generations, alive = table.column("generation")[: table.used], table.column("state")[: table.used] != FREE
    free = np.flatnonzero(~alive)
    shifted = generations[free].astype(np.int64) + shift & SLOT_MASK
    generations[free] = np.where(shifted == 0, 1, shifted)
    table.column("restored")[: table.used][alive] = 1


def _dismiss_waiters(state: State) -> None:
    waiters = list(state.waiters.values())
    for waiter in waiters:
        dismiss(state, waiter, "cancelled")
    settle(state, [key for waiter in waiters for key in waiter.keys])
