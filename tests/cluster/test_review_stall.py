"""A process that stands still for a heartbeat inside `Engine.append` must not answer with another entry's results."""

from __future__ import annotations

from cluster.ports import Committed
from tests.hazards.schedule import Directed
from tests.reference.register import command


class _StallsOnce:
    """The node's clock; the process is stopped for `seconds` just before it is read for the second time."""

    def __init__(self, clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._reads = 0

    def now(self) -> float:
        self._reads += 1
        if self._reads == 2:
            self._clock.offset += self._seconds
        return self._clock.now()


def test_a_stall_inside_append_gives_nobody_the_result_of_another_entry() -> None:
    world = Directed(5)
    leader = world.begin("n1")
    first = world.propose("n1", command("append", "list", "first"))
    world.run(0.0)
    assert not first
    # The first entry is on its way. The next append meets the stall.
    second = world.propose("n1", command("append", "other", "second"))
    append = leader.engine.append

    def stalling_append(payload: bytes) -> int | None:
        clock, leader.engine.clock = leader.engine.clock, _StallsOnce(world.sites["n1"].clock, 0.15)
        try:
            return append(payload)
        finally:
            leader.engine.clock = clock
            leader.engine.append = append

    leader.engine.append = stalling_append
    world.run(8)
    for outcomes, key, value in ((first, "list", "first"), (second, "other", "second")):
        assert len(outcomes) == 1
        if isinstance(outcomes[0], Committed):
            assert [name for name in ("n1", "n2", "n3") if world.value(name, key) != [value]] == []
    both = [outcome[0].index for outcome in (first, second) if isinstance(outcome[0], Committed)]
    assert len(set(both)) == len(both), f"two entries were acknowledged at one index: {both}"
