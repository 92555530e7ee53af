"""H3: the library cuts its log behind every append, conflict or not, and a second reset makes the leader send again.

Two ways to lose what was acknowledged. (a) Two answers "reset" are under way at once, so the same entries are sent
twice, and the first message of the second copy cuts what the first copy brought and the follower acknowledged.
(b) A restarted follower with a conflict far behind is sent a snapshot, and installing it clears its log.
"""

from __future__ import annotations

import pytest

from cluster.guards import ALL_ON, Guards
from cluster.options import Limits
from cluster.ports import Message
from tests.hazards.schedule import Directed, without

_ENTRIES = 20


def lost_by_second_copy(guards: Guards) -> str | None:
    """p03 of the proofs: pipelined heartbeats to a follower that missed everything."""
    world = Directed(3, guards=guards, limits=Limits(append_bytes=4500))
    world.begin("n1")
    world.pin("n2", "n3")
    world.split({"n1"}, {"n2"}, {"n3"})
    for number in range(_ENTRIES):
        world.append("n1", "put", f"z{number}", "v" * 1000)
    world.run(0.11)
    world.split({"n1", "n2"}, {"n3"})
    world.post.hold("n2", "n1")
    # Two heartbeats reach n2 before an answer is back, and both find a gap.
    world.reach(lambda: sum(held["type"] == "next_node_idx" for held in world.post.held("n2", "n1")) >= 2, 1)
    world.post.hold("n1", "n2")
    for _ in range(2):
        _next_ack(world)
        world.run(0.03)
    copies = [held["prevLogIdx"] for held in world.post.held("n1", "n2") if held.get("entries")]
    second = copies.index(copies[0], 1) if copies[0] in copies[1:] else len(copies)
    _deliver_appends(world, second)
    world.post.release("n2", "n1")
    world.reach(lambda: world.node("n1").engine.commit_index >= _ENTRIES, 1)
    if second < len(copies):
        _deliver_appends(world, 1)
    world.run(0.01)
    return _missing_after_leader_dies(world)


def _next_ack(world: Directed) -> None:
    while world.post.held("n2", "n1"):
        kind = world.post.held("n2", "n1")[0]["type"]
        world.post.release("n2", "n1", 1)
        if kind == "next_node_idx":
            return


def _deliver_appends(world: Directed, count: int) -> None:
    while count and world.post.held("n1", "n2"):
        count -= bool(world.post.held("n1", "n2")[0].get("entries"))
        world.post.release("n1", "n2", 1)
    world.run(0.02)


def _missing_after_leader_dies(world: Directed) -> str | None:
    world.crash("n1")
    world.split()
    world.unpin()
    world.reach(lambda: world.caught_up("n2", "n3"), 5)
    lost = [number for number in range(_ENTRIES) if world.value("n3", f"z{number}") is None]
    return f"{len(lost)} committed writes are lost" if lost else None


def lost_by_snapshot(guards: Guards) -> str | None:
    world = Directed(4, guards=guards, limits=Limits(retain_bytes=0))
    world.begin("n1")
    world.commit("n1", "put", "z0", 0)
    world.call("n1", lambda: world.node("n1").snapshot(5.0, lambda _outcome: None))
    world.run(0.5)
    world.split({"n1", "n2"}, {"n3"})
    for number in range(1, _ENTRIES):
        world.commit("n1", "put", f"z{number}", number)
    world.run(0.2)
    # n2 restarts with its log and no snapshot; the leader, told of a conflict, sends it the snapshot.
    world.crash("n2")
    world.start("n2")
    world.reach(lambda: world.network.linked("n1", "n2"), 1)
    world.node("n1").engine.set_next_index("n2", 2)
    installed = [row for row in world.timeline if row[1:3] == ("n2", "snapshot_installed")]
    world.post.choose(lambda s, r, m: None if (s, r) == ("n1", "n2") and m.get("entries") else m)
    world.node("n1").engine.hurry()
    world.run_until(lambda: len(installed) < sum(row[2] == "snapshot_installed" for row in world.timeline), 1)
    world.run(0.02)
    return _missing_after_leader_dies(world)


def test_a_second_copy_cuts_nothing() -> None:
    assert lost_by_second_copy(ALL_ON) is None


@pytest.mark.parametrize("off", [("reset_hint",), ("journal.soft_truncation",)])
def test_either_guard_alone_is_enough_against_the_second_copy(off: tuple[str, ...]) -> None:
    assert lost_by_second_copy(without(*off)) is None


def test_without_the_guards_acknowledged_entries_are_cut() -> None:
    assert lost_by_second_copy(without("reset_hint", "journal.soft_truncation")) == "16 committed writes are lost"


def test_a_snapshot_leaves_what_follows_it() -> None:
    assert lost_by_snapshot(ALL_ON) is None


def test_without_soft_truncation_a_snapshot_clears_what_follows_it() -> None:
    assert lost_by_snapshot(without("journal.soft_truncation")) == "19 committed writes are lost"


def sent_again(guards: Guards) -> str | None:
    """An acknowledgement that comes while more is on its way must not rewind the leader."""
    world = Directed(5, guards=guards)
    world.begin("n1")
    sent: list[int] = []

    def count(_sender: str, receiver: str, message: Message) -> Message:
        sent.extend(entry[1] for entry in message.get("entries", ()) if receiver == "n2")
        return message

    world.post.choose(count)
    world.post.hold("n2", "n1")
    for number in range(5):
        world.append("n1", "put", "k", number)
        world.run(0.02)
    first = world.node("n1").engine.match_index("n2")
    while world.node("n1").engine.match_index("n2") == first:
        _next_ack(world)
        world.run(0.002)
    world.run(0.12)
    world.post.release("n2", "n1")
    world.run(0.5)
    return f"{len(sent) - len(set(sent))} entries were sent twice" if len(sent) > len(set(sent)) else None


def test_an_acknowledgement_does_not_rewind() -> None:
    assert sent_again(ALL_ON) is None


def test_without_the_clamp_entries_are_sent_again() -> None:
    assert sent_again(without("reset_clamp")) == "3 entries were sent twice"
