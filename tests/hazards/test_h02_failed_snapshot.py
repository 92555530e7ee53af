"""H2: the library swallows a snapshot that cannot be loaded and still answers success, with its own last index.

A deposed leader keeps a tail of entries that nobody else has. The disk fails just when it loads the snapshot of its
successor. If it says "success" then, the successor counts it for entries that it does not have.
The other half of the guard: a snapshot older than what is applied here must not take the state back.
"""

from __future__ import annotations

import errno

from cluster.guards import ALL_ON, Guards
from cluster.options import Limits
from cluster.ports import Message
from tests.hazards.schedule import Directed, committed, without
from tests.reference.register import command

_LIMITS = Limits(retain_bytes=0)


def acknowledged_by_one(guards: Guards) -> str | None:
    world = Directed(2, guards=guards, limits=_LIMITS)
    world.begin("n1")
    world.commit("n1", "put", "before", 1)
    world.reach(lambda: world.caught_up("n2"), 1)
    world.split({"n1"}, {"n2", "n3"})
    for number in range(5):  # as long as its successor's log will be
        world.append("n1", "put", "stale", number)
    world.elect("n2")
    for number in range(3):
        world.commit("n2", "put", "other", number)
    world.call("n2", lambda: world.node("n2").snapshot(5.0, lambda _outcome: None))
    world.run(1)

    def unreadable(operation: str, path: str) -> None:
        if operation == "open" and path.endswith(".snap"):
            raise OSError(errno.EIO, "unreadable", path)

    world.sites["n1"].before_disk = unreadable
    world.split({"n1", "n2"}, {"n3"})
    precious = world.propose("n2", command("put", "precious", 42), timeout=60)
    world.run(0.7)
    if not committed(precious):
        return None
    world.crash("n2")
    world.sites["n1"].before_disk = None
    world.split()
    world.run(5)
    return "an acknowledged write is lost" if world.value("n3", "precious") is None else None


def test_an_unreadable_snapshot_is_not_acknowledged() -> None:
    assert acknowledged_by_one(ALL_ON) is None


def test_without_the_guard_a_write_on_one_node_is_acknowledged() -> None:
    assert acknowledged_by_one(without("snapshot_load_stops")) == "an acknowledged write is lost"


def test_a_disk_that_fails_when_the_snapshot_has_been_read_ends_the_node() -> None:
    """The library would go on without it, and the node could lead and answer nothing."""
    world = Directed(1, limits=_LIMITS)
    world.begin("n1")
    for number in range(5):
        world.commit("n1", "put", "k", number)
    world.reach(lambda: world.caught_up("n2", "n3"), 5)
    world.snapshot("n3")
    world.crash("n3")
    failed: list[str] = []

    def fail_once(operation: str, path: str) -> None:
        if operation == "size" and path.endswith(".snap") and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "input/output error", path)

    site = world.sites["n3"]
    site.before_disk = fail_once
    world.start("n3")
    world.run(1)
    assert failed and site.node is None
    site.before_disk = None
    world.start("n3")
    world.reach(lambda: world.caught_up("n2", "n3"), 5)


def state_goes_back(guards: Guards) -> str | None:
    world = Directed(3, guards=guards, limits=_LIMITS)
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    for number in range(5):
        world.commit("n1", "put", "old", number)
    world.call("n1", lambda: world.node("n1").snapshot(5.0, lambda _outcome: None))
    world.run(0.6)
    pieces: list[Message] = []

    def copy(_sender: str, _receiver: str, message: Message) -> Message:
        if message.get("serialized"):
            pieces.append(message)
        return message

    world.post.choose(copy)
    world.split()
    world.reach(lambda: world.caught_up("n3"), 5)
    world.commit("n1", "put", "new", 1)
    world.run(0.2)
    # n2 has all of this from the log. Then the leader, rewound by a late answer, sends it that snapshot, too.
    before = world.node("n2").engine.applied_index
    for piece in pieces:
        world.post.deliver("n1", "n2", piece)
    lowest = [before]
    world.watchers.append(lambda: lowest.append(world.node("n2").engine.applied_index))
    world.run(0.5)
    return f"applied went back by {before - min(lowest)}" if min(lowest) < before else None


def test_an_older_snapshot_is_not_installed() -> None:
    assert state_goes_back(ALL_ON) is None


def test_without_the_guard_the_state_goes_back() -> None:
    assert state_goes_back(without("snapshot_contiguous")) == "applied went back by 1"
