"""H5: an exception while applying is tried again every tick by the library, and its side effects with it.

The machine here fails in the middle of one command, on one node only, after it has changed something. The event loop
of a real process would report the exception and go on; so does the loop of this test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cluster.guards import ALL_ON, Guards
from cluster.ports import Outcome
from tests.hazards.schedule import Directed, without
from tests.reference.register import command


class _Poisoned:
    """Breaks `apply` of one site's machine at the command 'poison', behind a side effect."""

    def __init__(self, world: Directed, name: str) -> None:
        self.effects = 0
        self._machine = world.sites[name].machine
        self._apply = self._machine.apply
        self._machine.apply = self.apply  # type: ignore[method-assign]

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> list[Any]:
        if command("put", "poison", 1) in commands:
            self.effects += 1
            raise ValueError("a bug in the machine")
        return self._apply(index, now_ms, commands)


def _go_on_after_exceptions(world: Directed) -> None:
    for site in world.sites.values():
        run = site.run

        def lenient(callback: Callable[[], None], run: Callable[[Callable[[], None]], None] = run) -> None:
            try:
                run(callback)
            except ValueError:
                world.note("*", "exception", None)

        site.run = lenient  # type: ignore[method-assign]


def repeated_effects(guards: Guards) -> str | None:
    world = Directed(5, guards=guards)
    world.begin("n1")
    poisoned = _Poisoned(world, "n2")
    _go_on_after_exceptions(world)
    world.propose("n1", command("put", "poison", 1))
    world.run(2)
    return f"applied {poisoned.effects} times" if poisoned.effects > 1 else None


def test_a_bug_in_the_machine_stops_the_node() -> None:
    assert repeated_effects(ALL_ON) is None


def test_without_the_guard_the_effects_of_an_entry_repeat() -> None:
    found = repeated_effects(without("apply_stops"))
    assert found is not None
    assert int(found.split()[1]) > 10


def test_the_node_that_stopped_says_why_and_the_others_go_on() -> None:
    world = Directed(5)
    world.begin("n1")
    _Poisoned(world, "n2")
    world.propose("n1", command("put", "poison", 1))
    world.commit("n1", "put", "after", 1)
    world.run(0.2)
    assert "this is a bug" in world.sites["n2"].deaths[0]
    assert world.value("n3", "after") == 1


def test_an_exception_in_the_callback_of_a_caller_concerns_nobody_else() -> None:
    """The command is applied everywhere once, the node goes on, and the caller's bug is reported."""
    world = Directed(6)
    world.begin("n1")

    def wrong(_outcome: Outcome) -> None:
        raise ValueError("a cancelled future")

    world.call("n1", lambda: world.node("n1").propose(command("append", "list", 1), 5, wrong))
    world.call("n1", lambda: world.node("n1").read_index(5, wrong))
    world.run(1)
    assert world.sites["n1"].deaths == []
    reported = [fields["error"] for _, who, kind, fields in world.timeline if (who, kind) == ("n1", "callback_failed")]
    assert len(reported) == 2
    assert [world.value(name, "list") for name in ("n1", "n2", "n3")] == [[1]] * 3
