"""An election deadline that passes in the middle of a step.

The node looks at the clock to decide whether it may campaign, and later in the same step the library looks again. On
a busy machine the deadline can pass in between: at the second look the node must still be bound by the first.
"""

from __future__ import annotations

from cluster.node import ClusterNode
from tests.hazards.schedule import Directed


def _deadline_passes_in_the_step(world: Directed, name: str) -> ClusterNode:
    """The process is slow between its own look at the deadline and the library's, in every step from now on."""
    node, clock = world.node(name), world.sites[name].clock
    tick, term = node.engine.tick, node.engine.term

    def late(may_campaign: bool = False) -> None:
        clock.offset = max(clock.offset, clock.offset + node.engine.election_deadline - node.clock.now() + 0.001)
        assert node.engine.election_deadline < node.clock.now()
        tick(may_campaign)
        assert node.engine.term == term, "it campaigned"

    node.engine.tick = late  # type: ignore[method-assign]
    return node


def test_a_node_that_nobody_has_taken_in_never_leads_itself() -> None:
    world = Directed(1)
    world.begin("n1")
    world.add_site("n4").start()
    joiner = _deadline_passes_in_the_step(world, "n4")
    world.run(2)
    assert joiner.engine.term == 0
    assert not joiner.engine.is_leader
    assert joiner.journal.last_index <= 1


def test_a_follower_does_not_campaign_without_having_asked_around() -> None:
    world = Directed(2)
    world.begin("n1")
    world.commit("n1", "set", "key", 1)
    term = world.node("n1").engine.term
    follower = _deadline_passes_in_the_step(world, "n2")
    world.run(2)
    assert follower.engine.term == term
    assert world.node("n1").leadership.lease_valid()
