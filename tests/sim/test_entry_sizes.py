"""Entries of every awkward size and the largest there may be reach all nodes whole, and are there again (fault 16)."""

from __future__ import annotations

import pytest

from cluster.options import KIB, MIB, Limits
from cluster.ports import Committed, Denied, Outcome
from tests.hazards.schedule import Directed
from tests.proof.scale_loads import sized
from tests.reference.register import RegisterMachine, command

BLOCK = 64 * KIB
AROUND = range(-60, 2)
SHORT = Limits(append_bytes=BLOCK, entry_bytes=BLOCK)
"""Where the library itself would cut: a message takes no more than one block."""
NAMES = ("n1", "n2", "n3")
AT_ONCE, LARGE = 8, MIB


def committed(world: Directed, sizes: list[int]) -> None:
    """Small ones several at a time: messages end anywhere between two of them."""
    step = AT_ONCE if max(sizes) < LARGE else 1
    for start in range(0, len(sizes), step):
        asked = [world.propose("n1", sized(size)[1], 20.0) for size in sizes[start : start + step]]
        world.reach(lambda asked=asked: all(asked), 25)  # type: ignore[misc]
        assert all(isinstance(outcomes[0], Committed) for outcomes in asked), asked


def missing(world: Directed, sizes: list[int]) -> list[str]:
    """Of every node, the sizes that are not there as they were written."""
    named = [(size, *sized(size)) for size in sizes]
    return [
        f"{size} on {name}"
        for name in NAMES
        for size, key, made in named
        if (found := world.value(name, key)) is None or command("put", key, found) != made
    ]


def refused(world: Directed, size: int) -> Outcome:
    outcomes = world.propose("n1", sized(size, "over")[1])
    world.reach(lambda: bool(outcomes), 5)
    return outcomes[0]


def restarted(world: Directed) -> None:
    """The power goes everywhere at once."""
    for name in NAMES:
        world.crash(name)
    world.begin("n1")
    world.reach(lambda: world.caught_up("n1", "n2", "n3"), 10)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("limits", "blocks"), [(SHORT, (1, 2, 3, 4)), (Limits(), (1, 2, 4, 8))])
def test_entries_around_multiples_of_a_block_are_delivered_whole(limits: Limits, blocks: tuple[int, ...]) -> None:
    sizes = [block * BLOCK + more for block in blocks for more in AROUND]
    world = Directed(16, limits=limits, new_machine=lambda: RegisterMachine(digest=False))
    world.begin("n1")
    committed(world, sizes[: len(sizes) // 2])
    world.snapshot("n1")  # half of them come back from a snapshot there, and from the log elsewhere
    committed(world, sizes[len(sizes) // 2 :])
    world.reach(lambda: world.caught_up(*NAMES), 5)
    assert missing(world, sizes) == []
    restarted(world)
    assert missing(world, sizes) == []


@pytest.mark.timeout(120)
def test_the_largest_entry_is_delivered_whole_and_a_larger_one_refused() -> None:
    biggest = Limits().command_bytes
    sizes = [4 * MIB, biggest - 60, biggest - 1, biggest]
    world = Directed(16, limits=Limits(), new_machine=lambda: RegisterMachine(digest=False))
    world.begin("n1")
    committed(world, sizes)
    over = refused(world, biggest + 1)
    assert isinstance(over, Denied) and over.code == "too_large"
    world.reach(lambda: world.caught_up(*NAMES), 5)
    assert biggest == 16 * MIB and missing(world, sizes) == []
    restarted(world)
    assert missing(world, sizes) == []
