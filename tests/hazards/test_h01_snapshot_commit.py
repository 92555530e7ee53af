"""H1: a snapshot message says how far the leader has committed, but nothing says that the logs match up to there.

A leader is cut off with a client's command in its log. The others elect, give the same lock to somebody else and
compact. The first piece of their snapshot must not make the old leader apply, and acknowledge, its own entry.
"""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from cluster.options import Limits
from cluster.ports import Message
from tests.hazards.schedule import Directed, committed, without
from tests.reference.register import command

_LIMITS = Limits(retain_bytes=0, snapshot_chunk_bytes=64)


def two_holders(guards: Guards) -> str | None:
    world = Directed(1, guards=guards, limits=_LIMITS)
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    first = world.propose("n1", command("cas", "lock", None, "client-1"), timeout=60)
    world.elect("n2")
    second = world.commit("n2", "cas", "lock", None, "client-2")
    for number in range(5):
        world.commit("n2", "put", "other", number)
    world.call("n2", lambda: world.node("n2").snapshot(5.0, lambda _outcome: None))
    world.run(1)

    def first_piece_only(_sender: str, receiver: str, message: Message) -> Message | None:
        later = bool(message.get("serialized")) and message["snap_offset"] > 0
        return None if later and receiver == "n1" else message

    world.post.choose(first_piece_only)
    world.split()
    world.run(3)
    if committed(first) and first[0].result == ["ok", "client-1"]:
        return f"both {first[0].result[1]} and {second.result[1]} hold the lock"
    return None


def test_only_one_client_gets_the_lock() -> None:
    assert two_holders(ALL_ON) is None


def test_without_the_guard_two_clients_get_one_lock() -> None:
    assert two_holders(without("snapshot_commit")) == "both client-1 and client-2 hold the lock"
