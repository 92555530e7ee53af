"""Levels: which rules the replicated state goes by, so that nodes of two releases never apply one entry differently.

A release knows all levels from OLDEST to LEVEL. The level in force is part of the state. It is raised by an entry of
the log (`RaiseLevel`), which the leader proposes once every member knows the new one, and never lowered. Whatever a
release does differently from the one before, be it a rule, a result or a field of the state, it does from a level on:
it asks `state.level`, and below that it does exactly what the older release does. Then it does not matter which of them
applies an entry, nor when.

What each level brought:

1. Everything up to and including snapshot format 6, which says nothing of levels.
2. Snapshot format 7, which says the level. A clean-up that is over is known only in the namespace that it was of
   (`graph.FormerTenants`); below, every namespace is told `already_done`. When too many request ids are remembered,
   the oldest of the namespace with the most of them goes; below, the oldest of all.
3. Sets of garbage are cut by sweeps and by the entry that found one, and an entry does little of other garbage; below,
   every entry cuts as much of them as it may, and whoever asked for something else waits for that.
4. That a request was refused is remembered under its id for a while: an earlier try of it that comes later is refused
   as well; below, it could be granted to a client that had been told that it was not.
5. Which of what is due an entry works off follows from the state alone, and what the end of a resource cuts is charged
   to the entry; below, a node that was restored from a snapshot could end other leases in an entry than the others,
   as entries of the index that were not valid any more counted as well.
   What a task keeps, and what it is called there, is no client's; below, a client of that name shares the lease or has
   one beside it, and of two of one pair a restored node could find the other one.
   What ends with a hold or a wait whose time is over, of the same lock or of others, is charged to the entry, and left
   to its own turn when that is too much; below, one hold's turn ended all of its lock.
   A request for a lock that a node takes back for good is remembered as cancelled; below, it was forgotten, and a copy
   of it that came later waited for the lock, or got it, for nobody.
"""

from __future__ import annotations

OLDEST = 1
LEVEL = 5
"""The newest level that this release knows."""

FORMERS = 2
"""From this level on it is remembered whose clean-ups were over in a slot."""
SHARES = 2
"""From this level on each namespace has a share of the remembered requests."""

LITTLE_GARBAGE = 3
"""From this level on an entry of something else does little of what is garbage."""

REFUSALS = 4
"""From this level on it is remembered that a request was refused."""

STEADY_BATCHES = 5
"""From this level on a batch of what is due follows from the state alone."""
CHARGED_CUTS = 5
"""From this level on an entry is charged for what it cuts of resources whose time is over."""
TASK_NAMES = 5
"""From this level on no client acquires a lease that is a task's, or under the name of one."""
CHARGED_HOLDS = 5
"""From this level on an entry is charged for the holds and waits that end beside the one whose turn it is."""
ENDED_FOR_GOOD = 5
"""From this level on what is cancelled for good is remembered."""

MAX_LEVEL = 1 << 16


class TooNew(Exception):
    """What is to be applied or read is of a level or a format that this node does not know. It must not go on."""


def beyond(level: int, known: int) -> TooNew:
    return TooNew(
        f"the cluster's state is of level {level}, and this node knows levels up to {known}: start it with a release "
        f"that knows level {level}, and without a lower level_at_most"
    )
