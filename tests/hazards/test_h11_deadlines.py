"""H11: there are commands whose caller the library never answers: those of a deposed leader, and of a broken link."""

from __future__ import annotations

from cluster.guards import ALL_ON, Guards
from cluster.ports import Unknown
from tests.hazards.schedule import Directed, without
from tests.reference.register import command


def never_answered(guards: Guards) -> str | None:
    """A leader that is cut off for good: its entry is neither committed nor overwritten."""
    world = Directed(11, guards=guards)
    world.begin("n1")
    world.split({"n1"}, {"n2", "n3"})
    outcomes = world.propose("n1", command("put", "k", 1), timeout=1.0)
    world.run(30)
    if not outcomes:
        return "no answer 29 s after the deadline"
    assert isinstance(outcomes[0], Unknown)
    return None


def test_every_proposal_ends_by_its_deadline_as_unknown() -> None:
    assert never_answered(ALL_ON) is None


def test_without_the_deadline_a_proposal_never_ends() -> None:
    assert never_answered(without("proposal_deadline")) == "no answer 29 s after the deadline"
