"""What debounce and hold-down are for, shown by the experiment of bench/thrash.py in a small size."""

from __future__ import annotations

import statistics

import pytest

from bench.thrash import BEAT_MS, STEP_MS, Policy, World

NAIVE = Policy("naive TTL", 4, 0, 0)
DEBOUNCE = Policy("debounce", 4, 2, 0)
HOLD_DOWN = Policy("hold-down alone", 4, 0, 2)
SLACK_S = 2 * STEP_MS / 1000 + 0.256
"""A step there and back, and the width of a timer's bucket."""


def moved(policy: Policy, loss: float, seconds: float = 60) -> int:
    world = World(policy, loss, seed=11)
    world.run(seconds)
    return world.revoked


def test_debounce_cuts_needless_migrations() -> None:
    naive, debounced = moved(NAIVE, 0.3), moved(DEBOUNCE, 0.3)
    assert naive > 50
    assert debounced * 8 < naive


def test_hold_down_keeps_what_bounces_where_it_is() -> None:
    assert moved(HOLD_DOWN, 0.4, 100) * 1.5 < moved(NAIVE, 0.4, 100)


@pytest.mark.parametrize("policy", [NAIVE, DEBOUNCE], ids=lambda policy: str(policy.name))
def test_what_a_dead_worker_had_is_another_s_in_time(policy: Policy) -> None:
    """Without loss and delay: the lease, and the debounce, counted from its last beat."""
    world = World(policy, 0.0, seed=5, late=0.0)
    world.run(10)
    taken = world.recovery_s()
    longest_s = (policy.lease_beats + policy.debounce_beats) * BEAT_MS / 1000
    assert longest_s - BEAT_MS / 1000 - SLACK_S <= min(taken)
    assert max(taken) <= longest_s + SLACK_S
    assert world.revoked == 0, "nobody who lives lost anything"
    assert statistics.mean(taken) > longest_s - BEAT_MS / 1000
