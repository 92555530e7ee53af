"""H12: the library prepares messages for a follower that takes none: all it lacks, and with nothing to send, nothing,
thousands of times in one tick.
"""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from cluster.options import MIB
from cluster.outbox import FULL_BYTES
from cluster.ports import Message
from tests.hazards.schedule import Directed, without


def queued_for_a_stopped_follower(guards: Guards) -> str | None:
    world = Directed(12, guards=guards)
    world.begin("n1")
    world.stop("n3")
    most = [0]
    world.watchers.append(lambda: most.append(world.network.in_flight_bytes("n1", "n3")))
    for number in range(30):
        world.commit("n1", "put", f"k{number}", b"v" * MIB)
    over = max(most) - FULL_BYTES
    return f"{max(most) // MIB} MiB wait for one follower" if over > 2 * MIB else None


def test_a_follower_that_takes_nothing_is_sent_no_more() -> None:
    assert queued_for_a_stopped_follower(ALL_ON) is None


def test_without_pacing_entries_pile_up_for_a_stopped_follower() -> None:
    assert queued_for_a_stopped_follower(without("pacing")) == "30 MiB wait for one follower"


class _Running:
    """A clock that goes on while code runs, as real ones do: the library's loop ends by it."""

    def __init__(self, world: Directed, name: str) -> None:
        self._clock = world.sites[name].clock
        self._ahead = 0.0

    def now(self) -> float:
        self._ahead += 1e-5
        return self._clock.now() + self._ahead


def empty_messages_in_one_tick(guards: Guards) -> str | None:
    """The follower needs a snapshot and there is none to send yet."""
    world = Directed(12, guards=guards)
    leader = world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    world.commit("n1", "put", "k", 1)
    leader.compaction.next_chunk = lambda peer: None  # type: ignore[method-assign]
    leader.engine.clock = _Running(world, "n1")
    empty: list[Message] = []
    send = leader.outbox.add

    def count(peer: str, message: Message) -> bool:
        if message.get("serialized", b"") is None:
            empty.append(message)
        return send(peer, message)

    leader.outbox.add = count  # type: ignore[method-assign]
    leader.engine.set_next_index("n3", 1)
    leader.engine.hurry()
    world.call("n1", leader.step)
    return f"{len(empty)} empty messages" if len(empty) > 1 else None


def test_a_tick_with_nothing_to_send_sends_one_sign_of_life() -> None:
    assert empty_messages_in_one_tick(ALL_ON) is None


def test_without_pacing_thousands_of_empty_messages_are_sent() -> None:
    found = empty_messages_in_one_tick(without("pacing"))
    assert found is not None
    assert int(found.split()[0]) > 1000
