"""H4: the library's acknowledgement names no term, so one of an earlier term counts for a leader elected again.

Five nodes. n1 leads, only n2 takes its entries, and n2's answers are slow. n3 leads next and overwrites n1's tail.
n1 leads again, and only n4 takes its new entry; then n2's old answers arrive.
"""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, committed, without
from tests.reference.register import command


def acknowledged_by_two_of_five(guards: Guards) -> str | None:
    world = Directed(4, 5, guards=guards)
    world.begin("n1")
    world.post.hold("n2", "n1")
    world.split({"n1", "n2"}, {"n3", "n4", "n5"})
    for number in range(8):
        world.append("n1", "put", "old", number)
        world.run(0.01)
    world.split({"n1", "n3", "n4", "n5"}, {"n2"})
    world.pin("n2")
    world.network.cut |= {("n1", other) for other in ("n3", "n4", "n5")}
    world.elect("n3")
    world.split({"n1", "n3", "n4", "n5"}, {"n2"})
    world.reach(lambda: world.caught_up("n1"), 3)
    world.network.cut |= {("n3", other) for other in ("n1", "n4", "n5")}
    world.elect("n1")
    world.pin("n2", "n3", "n4", "n5")
    world.split({"n1", "n4"}, {"n2", "n3", "n5"})
    precious = world.propose("n1", command("put", "precious", 1), timeout=60)
    world.run(0.05)
    world.post.release("n2", "n1")
    world.run(0.05)
    if not committed(precious):
        return None
    world.crash("n1")
    world.crash("n4")
    world.split()
    world.unpin()
    world.reach(lambda: world.caught_up("n2", "n3", "n5"), 10)
    return "an acknowledged write is lost" if world.value("n3", "precious") is None else None


def test_an_answer_of_an_old_term_does_not_count() -> None:
    assert acknowledged_by_two_of_five(ALL_ON) is None


def test_without_the_guard_what_two_of_five_have_is_committed() -> None:
    assert acknowledged_by_two_of_five(without("ack_term")) == "an acknowledged write is lost"
