"""The simulation finds bugs: with a guard switched off, some seed fails, and for the right reason.

Guards that only a particular schedule misses have theirs in tests/hazards and tests/lease.
"""

from __future__ import annotations

from dataclasses import replace

from cluster.frames import LinkGuards
from cluster.guards import ALL_ON, Guards
from cluster.journal import JournalGuards
from tests.sim.plan import draw
from tests.sim.runner import run_plan

TRIES = 60


def first_finding(guards: Guards = ALL_ON, link_guards: LinkGuards | None = None) -> str | None:
    """The invariant that the first failing seed breaks."""
    for seed in range(TRIES):
        result = run_plan(draw(seed), guards=guards, link_guards=link_guards)
        if result.invariant is not None:
            return result.invariant
    return None


def test_acknowledging_before_fdatasync_is_found() -> None:
    # A log with a hole where it was "synced" refuses to start; if the hole is at its end, writes or votes are lost.
    found = first_finding(replace(ALL_ON, journal=JournalGuards(fsync=False)))
    assert found in {"JournalCorrupt", "JournalHole", "durable", "log_matching", "leader_completeness"}


def test_accepting_a_frame_twice_is_found() -> None:
    assert first_finding(link_guards=LinkGuards(frame_sequence=False)) in {"durable", "one_answer"}


def test_charging_an_outage_to_the_clock_is_found() -> None:
    assert first_finding(replace(ALL_ON, clock_step=False)) == "clock_bounds"


def test_a_proposal_that_never_ends_is_found() -> None:
    assert first_finding(replace(ALL_ON, proposal_deadline=False)) == "one_answer"
