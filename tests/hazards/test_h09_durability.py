"""H9: the library syncs nothing, checks nothing and starts with whatever is left.

(a) Votes and entries that were not synced are gone after a power cut: a node votes twice in a term, and what was
acknowledged is lost. (b) A flipped bit in the log. (c) A trimmed log whose snapshot is gone. (d) The whole data
directory is gone. In (b) and (c) the node must refuse to start, in (d) it must not be listened to: the others have
what it forgot.
"""

from __future__ import annotations

import pytest

from cluster.guards import ALL_ON, Guards
from cluster.options import Limits
from cluster.segments import JournalCorrupt, JournalHole
from tests.hazards.schedule import Directed, without
from tests.sim.disk import SimDisk

_SEEDS = range(20)


def two_leaders_in_a_term(seed: int, guards: Guards) -> str | None:
    """n2 votes for n1, loses power, and is asked by n3 in the same term."""
    world = Directed(seed, guards=guards)
    leaders: dict[int, set[str]] = {}

    def look() -> None:
        for node in world.nodes():
            if node.engine.is_leader:
                leaders.setdefault(node.engine.term, set()).add(node.options.node_id)

    world.watchers.append(look)
    world.start()
    world.pin("n1", "n2", "n3")
    world.reach(lambda: len(world.nodes()) == 3 and not any(node.elections.unheard for node in world.nodes()), 5)
    world.split({"n1", "n2"}, {"n3"})
    world.run(1)
    world.campaign("n1")
    world.reach(lambda: world.node("n1").engine.is_leader, 5)
    world.split({"n1"}, {"n2", "n3"})
    world.crash("n2")
    try:
        world.start("n2")
    except JournalCorrupt:
        return "n2 cannot start"
    world.campaign("n3")
    world.run(3)
    twice = [term for term, names in leaders.items() if len(names) > 1]
    return f"term {twice[0]} has two leaders" if twice else None


def test_a_vote_survives_a_power_cut() -> None:
    assert [two_leaders_in_a_term(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_fsync_a_node_votes_twice() -> None:
    # A node that forgot everything is not heard either; here it is, to see what the sync alone is good for.
    guards = without("journal.fsync", "store_identity")
    assert "term 1 has two leaders" in [two_leaders_in_a_term(seed, guards) for seed in _SEEDS]


def lost_in_power_cut(seed: int, guards: Guards) -> str | None:
    world = Directed(seed, guards=guards)
    world.begin("n1")
    world.commit("n1", "put", "precious", 1)
    for name in ("n1", "n2", "n3"):
        world.crash(name)
    try:
        world.start()
    except JournalCorrupt:
        return "a node cannot start"
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
    return "an acknowledged write is lost" if world.value("n1", "precious") is None else None


def test_an_acknowledged_write_survives_a_power_cut_of_all_nodes() -> None:
    assert [lost_in_power_cut(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_fsync_a_power_cut_loses_writes_or_nothing_starts() -> None:
    assert None not in [lost_in_power_cut(seed, without("journal.fsync")) for seed in _SEEDS]


def lost_by_flipped_bit(guards: Guards) -> str | None:
    world = Directed(9, guards=guards)
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    for number in range(5):
        world.commit("n1", "put", f"k{number}", "v" * 100)
    world.crash("n2")
    with world.disk_of("n2") as disk:
        path = f"/data/log/{disk.names('/data/log')[-1]}"
        disk.flip(path, disk.content(path).index(b"v" * 100), 3)
    world.start("n2")
    world.crash("n1")
    world.split()
    world.reach(lambda: world.caught_up("n2", "n3"), 10)
    lost = [number for number in range(5) if world.value("n3", f"k{number}") != "v" * 100]
    return f"{len(lost)} acknowledged writes are lost" if lost else None


def test_a_flipped_bit_in_the_log_refuses_to_start() -> None:
    with pytest.raises(JournalCorrupt, match="damaged at offset"):
        lost_by_flipped_bit(ALL_ON)


def test_without_the_check_a_flipped_bit_loses_acknowledged_writes() -> None:
    assert lost_by_flipped_bit(without("journal.detect_corruption")) == "5 acknowledged writes are lost"


def starts_empty(guards: Guards) -> str | None:
    world = Directed(9, guards=guards, limits=Limits(retain_bytes=0, segment_bytes=2000))
    world.begin("n1")
    for number in range(20):
        world.commit("n1", "put", f"k{number}", "v" * 300)
    world.run(0.2)
    for name in ("n1", "n2", "n3"):
        world.call(name, lambda name=name: world.node(name).snapshot(5.0, lambda _outcome: None))
    world.run(1)
    for number in range(20, 30):
        world.commit("n1", "put", f"k{number}", "v" * 300)
    world.run(0.2)
    world.crash("n2")
    with world.disk_of("n2") as disk:
        for name in disk.names("/data/snapshots"):
            disk.unlink(f"/data/snapshots/{name}")
        disk.sync_directory("/data/snapshots")
    world.start("n2")
    world.run(1)
    missing = [number for number in range(20) if world.value("n2", f"k{number}") is None]
    world.crash("n1")
    world.pin("n3")
    world.campaign("n2")
    world.reach(lambda: world.node("n2").engine.is_leader, 5)
    return f"a leader without {len(missing)} acknowledged writes" if missing else None


def test_a_trimmed_log_without_its_snapshot_refuses_to_start() -> None:
    with pytest.raises(JournalHole, match="trimmed log but no snapshot"):
        starts_empty(ALL_ON)


def test_without_the_check_a_log_with_a_hole_starts_empty_and_leads() -> None:
    assert starts_empty(without("journal.detect_hole")) == "a leader without 20 acknowledged writes"


def lost_with_directory(guards: Guards) -> str | None:
    """n1 and n2 have it, n3 does not. n2 comes back with an empty disk and votes with n3."""
    world = Directed(9, guards=guards)
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    world.commit("n1", "put", "precious", 1)
    world.crash("n2")
    world.sites["n2"].disk = empty = SimDisk()
    empty.on_operation = world.sites["n2"]._enter_disk
    world.start("n2")
    world.crash("n1")
    world.split()
    world.run(10)
    leader = world.leader()
    if leader is not None and leader.leadership.ready and world.value("n3", "precious") is None:
        return "a quorum that has forgotten an acknowledged write"
    return None


def test_a_node_without_its_directory_does_not_vote() -> None:
    assert lost_with_directory(ALL_ON) is None


def test_without_the_check_one_that_lost_its_directory_elects_one_that_lacks_a_write() -> None:
    assert lost_with_directory(without("store_identity")) == "a quorum that has forgotten an acknowledged write"
