"""H8: a crash between a new snapshot and the trimming of the log makes the library clear the log at the next start.

n1 and n2 commit while n3 is away. n2 dies just when its snapshot has its name and its log is not yet trimmed; it
comes back, n1 dies, and n2 must still have all that n1 acknowledged.

Two guards cover this window, and each is enough: a crash alone cannot part them. Only files all of whose entries lie
before the log's first are deleted, and the log never begins behind the entry before the newest durable snapshot's
last. So after a crash the log on disk either holds both entries the library asks for, and soft truncation takes back
what follows them, or it ends before them or differs there, and there is nothing to keep. Aligning stands alone where
the log begins later than that, which takes an older snapshot put back in the place of the newest.
"""

from __future__ import annotations

import pytest

from cluster.guards import ALL_ON, Guards
from cluster.options import Limits
from cluster.segments import JournalHole
from tests.hazards.schedule import Directed, without

_WRITES = 30


def lost_after_restart(guards: Guards) -> str | None:
    world = Directed(8, guards=guards)
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    for number in range(10):
        world.commit("n1", "put", f"k{number}", number)
    world.run(0.2)
    before = world.node("n2").journal.first_index
    world.call("n2", lambda: world.node("n2").snapshot(5.0, lambda _outcome: None))
    for number in range(10, _WRITES):
        world.commit("n1", "put", f"k{number}", number)
    taken = world.node("n2").compaction
    world.reach(lambda: taken._store.latest() is not None, 2)
    assert world.node("n2").journal.first_index == before
    world.crash("n2")
    world.start("n2")
    world.crash("n1")
    world.split()
    world.reach(lambda: world.caught_up("n2", "n3"), 10)
    lost = [number for number in range(_WRITES) if world.value("n3", f"k{number}") is None]
    return f"{len(lost)} acknowledged writes are lost" if lost else None


def test_the_log_behind_the_snapshot_is_kept() -> None:
    assert lost_after_restart(ALL_ON) is None


@pytest.mark.parametrize("off", ["journal.align_snapshot", "journal.soft_truncation"])
def test_each_of_the_two_guards_is_enough(off: str) -> None:
    """Aligned at open, the library finds nothing to clear; and what it clears comes back if nothing differs."""
    assert lost_after_restart(without(off)) is None


def test_without_the_guards_the_log_is_cleared() -> None:
    found = lost_after_restart(without("journal.align_snapshot", "journal.soft_truncation"))
    assert found is not None
    assert found.endswith("acknowledged writes are lost")


def lost_with_older_snapshot(guards: Guards, between: int) -> str | None:
    """n2's newest snapshot is gone and the one before it, `between` entries older, is back in its place."""
    world = Directed(8, guards=guards, limits=Limits(segment_bytes=1, retain_bytes=0))
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    world.commit("n1", "put", "k0", 0)
    world.run(0.2)
    world.snapshot("n2")
    with world.disk_of("n2") as disk:
        (older,) = disk.names("/data/snapshots")
        content = disk.content(f"/data/snapshots/{older}")
    for number in range(1, 1 + between):
        world.commit("n1", "put", f"k{number}", number)
    world.run(0.2)
    world.snapshot("n2")
    for number in range(1 + between, _WRITES):
        world.commit("n1", "put", f"k{number}", number)
    world.crash("n2")
    with world.disk_of("n2") as disk:
        for name in disk.names("/data/snapshots"):
            disk.unlink(f"/data/snapshots/{name}")
        disk.sync_directory("/data/snapshots")
        disk.overwrite(f"/data/snapshots/{older}", content)
    world.start("n2")
    world.crash("n1")
    world.split()
    world.reach(lambda: world.caught_up("n2", "n3"), 10)
    lost = [number for number in range(_WRITES) if world.value("n3", f"k{number}") is None]
    return f"{len(lost)} acknowledged writes are lost" if lost else None


def test_a_log_that_begins_with_the_snapshot_s_last_entry_is_kept() -> None:
    assert lost_with_older_snapshot(ALL_ON, between=1) is None


def test_a_log_that_begins_behind_the_snapshot_refuses_to_start() -> None:
    with pytest.raises(JournalHole, match="what lies between is missing"):
        lost_with_older_snapshot(ALL_ON, between=5)


@pytest.mark.parametrize("between", [1, 5])
def test_without_aligning_the_library_clears_a_log_that_it_needs(between: int) -> None:
    guards = without("journal.align_snapshot")
    assert lost_with_older_snapshot(guards, between) == f"{_WRITES - 1} acknowledged writes are lost"
