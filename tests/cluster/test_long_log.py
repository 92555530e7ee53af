"""A log that is longer than what is kept of it in memory: followers far behind and restarted nodes read the files."""

from __future__ import annotations

from cluster.options import Limits
from tests.hazards.schedule import Directed

LIMITS = Limits(log_memory_bytes=100, segment_bytes=4_000, append_bytes=600, apply_bytes=300)


def test_a_follower_far_behind_is_sent_what_only_the_files_have() -> None:
    world = Directed(8, limits=LIMITS)
    world.begin("n1")
    world.crash("n3")
    for number in range(150):
        world.commit("n1", "put", f"k{number}", number)
    journal = world.node("n1").journal
    assert journal.log_bytes > 10 * journal.held_bytes
    world.start("n3")
    world.reach(lambda: world.caught_up("n3"), 10)
    assert [world.value("n3", f"k{number}") for number in range(150)] == list(range(150))
    assert world.node("n3").compaction.last_index == 0, "it needed no snapshot"


def test_restarted_nodes_apply_from_their_files() -> None:
    world = Directed(9, limits=LIMITS)
    world.begin("n1")
    for number in range(150):
        world.commit("n1", "put", f"k{number}", number)
    for name in ("n1", "n2", "n3"):
        world.crash(name)
    world.start("n1", "n2", "n3")
    world.elect("n2")
    world.commit("n2", "put", "k0", "new")
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)
    for name in ("n1", "n2", "n3"):
        assert world.value(name, "k0") == "new" and world.value(name, "k149") == 149
        assert world.node(name).journal.held_bytes < 2_000


def test_whoever_asks_for_a_term_makes_nobody_read_a_file() -> None:
    """A new leader looks at every entry since the snapshot in one step."""
    world = Directed(10, limits=LIMITS)
    world.begin("n1")
    for number in range(60):
        world.commit("n1", "put", f"k{number}", number)
    node = world.node("n1")
    term, ask = node.engine.term, node.engine._core._SyncObj__getEntries
    assert (ask(30, 1), ask(30)) == ([(b"", 30, term)], [(b"", 30, term), (b"", 31, term)])
    assert all(command for command, _, _ in ask(30, 2)), "a snapshot has its last two whole"
