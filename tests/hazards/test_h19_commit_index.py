"""H19: the library keeps its commit index in a file of its own, which may say more than the log holds after a crash.

Such a node takes whatever a leader appends next for committed. Ours forgets the index and lets the leader tell.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pysyncobj.journal import createJournal

from cluster.guards import ALL_ON, Guards
from tests.hazards.bare import bare_network, elect, make, step
from tests.hazards.schedule import Directed, without


def applied_uncommitted(guards: Guards) -> str | None:
    """n1 and n2 of five have an entry that the other three overwrite; n2 restarts before it hears of that."""
    world = Directed(19, 5, guards=guards)
    world.begin("n1")
    world.commit("n1", "put", "k", "committed")
    world.run(0.2)
    world.split({"n1", "n2"}, {"n3", "n4", "n5"})
    before = world.node("n2").journal.last_index
    world.append("n1", "put", "k", "uncommitted")
    world.reach(lambda: world.node("n2").journal.last_index > before, 0.5)
    world.run(0.05)
    world.split({"n1"}, {"n2"}, {"n3", "n4", "n5"})
    world.crash("n2")
    world.start("n2")
    world.run(0.1)
    applied = world.node("n2").engine.applied_index
    world.elect("n3")
    world.commit("n3", "put", "k", "another")
    if applied > before:
        return f"n2 has applied {world.value('n2', 'k')!r}, the cluster has {world.value('n3', 'k')!r}"
    world.split()
    world.reach(lambda: world.caught_up("n2"), 10)
    assert world.value("n2", "k") == "another"
    return None


def test_after_a_restart_only_the_leader_says_what_is_committed() -> None:
    assert applied_uncommitted(ALL_ON) is None


def test_without_the_guard_what_is_overwritten_elsewhere_is_applied() -> None:
    found = applied_uncommitted(without("journal.commit_told"))
    assert found == "n2 has applied 'uncommitted', the cluster has 'another'"


def test_a_restarted_node_applies_only_what_its_leader_has_committed() -> None:
    world = Directed(19, 5)
    world.begin("n1")
    for number in range(5):
        world.commit("n1", "put", "k", number)
    world.run(0.2)
    committed = world.node("n2").engine.commit_index
    world.crash("n2")
    world.start("n2")
    node = world.node("n2")
    assert node.engine.commit_index <= node.journal.last_index
    assert node.engine.applied_index < committed
    # Two of five have the next entry: it must not be applied, whatever n2 knew before.
    world.split({"n1", "n2"}, {"n3", "n4", "n5"})
    world.append("n1", "put", "k", "uncommitted")
    world.reach(lambda: node.journal.last_index > committed, 0.5)
    world.run(0.1)
    assert node.engine.applied_index == committed
    assert world.value("n2", "k") == 4


def test_after_a_power_cut_the_commit_index_never_exceeds_the_log() -> None:
    for seed in range(10):
        world = Directed(seed)
        world.begin("n1")
        for number in range(5):
            world.append("n1", "put", "k", number)
            world.run(0.002)
        for name in ("n1", "n2", "n3"):
            world.crash(name)
        world.start()
        for node in world.nodes():
            assert node.engine.commit_index <= node.journal.last_index


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the library leaves its meta file open
def test_the_library_applies_what_nobody_committed(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    journal = createJournal(path)
    journal.setRaftCommitIndex(50)  # what a crash leaves whose log did not reach the disk
    journal.onOneSecondTimer()
    journal._destroy()
    with bare_network() as network:
        names = ["a", "b", "c", "d", "e"]
        leader = make("a", names)
        others = [make(name, names) for name in names[2:]]
        restarted = make("b", names, journalFile=path)
        assert restarted.raftCommitIndex == 50
        elect(leader)
        network.queues.pop(("a", "b"))  # it missed the election
        step([leader, *others], network, 2)
        for node in others:  # and now only two of five are left
            leader._SyncObj__transport._onNodeDisconnected(node.selfNode)
        network.queues.clear()
        leader.put("k", "uncommitted")
        step([leader, restarted], network, 5)
        assert leader.values == {}
        assert restarted.values == {"k": "uncommitted"}
        restarted.destroy()
