"""A link that comes and goes does not make terms grow: at most one a minute (fault 4).

Whoever does not hear its leader asks first whether a majority would vote for it, and those that hear the leader would
not. So only a leader that loses its majority falls, and one link is never that much.
"""

from __future__ import annotations

import pytest

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

SIZES = (3, 5)
PERIODS_S = (1.0, 2.5, 6.0)
"""Half of it the link is down: as long as the shortest election timeout, longer than the longest, several of them."""
A_MINUTE_S = 60.0
OF_THE_LEADER = (("n1", "n2"), ("n2", "n1"))
TO_A_FOLLOWER = OF_THE_LEADER[:1]
FROM_A_FOLLOWER = OF_THE_LEADER[1:]
BETWEEN_FOLLOWERS = (("n2", "n3"), ("n3", "n2"))

Ways = tuple[tuple[str, str], ...]


def terms_begun(size: int, ways: Ways, period_s: float, guards: Guards = ALL_ON) -> int:
    """In a minute; n1 leads when it begins."""
    world = Directed(size, size, guards=guards)
    term = world.begin("n1").engine.term
    for _ in range(int(A_MINUTE_S / period_s)):
        world.network.cut |= set(ways)
        world.run(period_s / 2)
        world.network.cut -= set(ways)
        world.run(period_s / 2)
    return max(node.engine.term for node in world.nodes()) - term


@pytest.mark.parametrize("period_s", PERIODS_S)
@pytest.mark.parametrize("size", SIZES)
def test_a_flapping_link_of_the_leader_begins_at_most_one_term_a_minute(size: int, period_s: float) -> None:
    assert terms_begun(size, OF_THE_LEADER, period_s) <= 1


@pytest.mark.parametrize("ways", [TO_A_FOLLOWER, FROM_A_FOLLOWER, BETWEEN_FOLLOWERS], ids=["to", "from", "between"])
def test_nor_does_one_that_flaps_one_way_or_between_followers(ways: Ways) -> None:
    assert terms_begun(3, ways, 2.5) <= 1


@pytest.mark.parametrize("size", SIZES)
def test_without_pre_vote_a_flapping_link_begins_term_after_term(size: int) -> None:
    assert terms_begun(size, OF_THE_LEADER, 6.0, without("pre_vote")) > 3
