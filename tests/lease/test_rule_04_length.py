"""Rule 4: the lease is Δ(1−ε), for clocks of different rates, and begins with the first applied entry of the term."""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from tests.hazards.schedule import Directed, without

_SEEDS = range(20)
_RHO = 0.01


def two_leases(seed: int, guards: Guards) -> str | None:
    """The leader's clock is as slow and the others' as fast as allowed, and the election takes no time at all."""
    world = Directed(seed, guards=guards, rates=(1 - _RHO, 1 + _RHO, 1 + _RHO))
    world.network.weather.delay = (0.0001, 0.0001)
    world.begin("n1")
    doubles = world.watch_leases()
    world.pin("n2", "n3")
    world.run(0.5)
    follower = world.node("n3")
    fresh = follower.elections._withhold_until
    world.reach(lambda: follower.elections._withhold_until > fresh, 0.2)
    world.run(0.0005)
    world.split({"n1"}, {"n2", "n3"})
    # Both promises end within a message's delay of each other. n3 wakes up just behind the later one.
    until = max(world.node(name).elections._withhold_until - world.node(name).clock.now() for name in ("n2", "n3"))
    world.run(until / (1 + _RHO) + 0.0002)
    world.campaign("n3")
    world.run(1)
    return " and ".join(doubles[0][1]) + " hold a lease" if doubles else None


def test_the_lease_allows_for_clocks_of_different_rates() -> None:
    assert [two_leases(seed, ALL_ON) for seed in _SEEDS] == [None] * len(_SEEDS)


def test_without_epsilon_two_nodes_hold_a_lease() -> None:
    found = [two_leases(seed, without("clock_rate")) for seed in _SEEDS]
    assert found == ["n1 and n3 hold a lease"] * len(_SEEDS)


def stale_read(guards: Guards) -> str | None:
    """n1 and n3 have a write that n1 acknowledged; n3 does not know yet that it is committed. n3 is elected.

    n2, which lacks the write, refuses n3's first append, but the refusal is an answer: n3 has a quorum.
    """
    world = Directed(4, guards=guards)
    world.begin("n1")
    world.split({"n1", "n3"}, {"n2"})
    world.post.choose(lambda s, r, m: m if r != "n3" or "entries" not in m else dict(m, commit_index=0))
    world.commit("n1", "put", "k", "acknowledged")
    world.crash("n1")
    world.split()
    world.pin("n2")
    world.campaign("n3")
    world.reach(world.node("n3").leadership.lease_valid, 5)
    answers = world.ask("n3")
    world.reach(lambda: bool(answers), 2)
    return f"the new leader reads {answers[0].get('k')}" if answers[0].get("k") != "acknowledged" else None


def test_a_new_leader_reads_all_that_was_acknowledged() -> None:
    assert stale_read(ALL_ON) is None


def test_without_its_first_entry_a_leader_misses_writes() -> None:
    assert stale_read(without("lease_needs_noop")) == "the new leader reads None"
