"""H7: the library counts forwarded commands from 1 in every process: a new client gets an old client's answer.

The leader keeps a forwarded command waiting while two entries of its own are on their way. The follower that sent
it restarts meanwhile and forwards another one; both have sequence 1.
"""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from cluster.ports import Committed
from tests.hazards.schedule import Directed, without
from tests.reference.register import command


def wrong_answer(guards: Guards) -> str | None:
    world = Directed(7, guards=guards)
    world.begin("n1")
    world.split({"n1", "n2"}, {"n3"})
    mute = world.post.lose("next_node_idx", sender="n2")
    for number in range(2):
        world.propose("n1", command("put", "filler", number))
        world.run(0.01)
    world.propose("n2", command("put", "lock", "old client"))
    world.run(0.01)
    world.crash("n2")
    world.start("n2")
    world.reach(lambda: world.node("n2").engine.leader == "n1", 0.4)
    answers = world.propose("n2", command("append", "list", "new client"))
    world.run(0.01)
    world.post.forget(mute)
    world.reach(lambda: bool(answers), 6)
    answer = answers[0]
    if isinstance(answer, Committed) and answer.result != ["ok", 1]:
        return f"the new client was told {answer.result}"
    return None


def test_an_answer_goes_to_the_process_that_asked() -> None:
    assert wrong_answer(ALL_ON) is None


def test_without_the_guard_a_new_client_gets_an_old_answer() -> None:
    assert wrong_answer(without("forward_incarnation")) == "the new client was told ['ok', 'old client']"
