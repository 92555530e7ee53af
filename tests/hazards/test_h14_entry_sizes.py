"""H14: the library cuts entries of the batch size and more into chunks, wrongly near multiples of that size."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.frames import FrameError
from cluster.guards import ALL_ON, Guards
from cluster.options import KIB, Limits
from tests.hazards.bare import BareRegister, bare_network, elect, make, step
from tests.hazards.schedule import Directed, without

_BATCH = 64 * KIB
_SIZES = [multiple * _BATCH + around for multiple in (1, 2, 3) for around in (-200, -120, -60, -30, -1, 0, 1, 60)]


def sizes_not_replicated(guards: Guards) -> list[int]:
    world = Directed(14, guards=guards, limits=Limits(append_bytes=_BATCH, entry_bytes=_BATCH))
    world.begin("n1")
    for size in _SIZES:
        world.commit("n1", "put", f"k{size}", b"v" * size)
    world.run(0.3)
    names = ("n1", "n2", "n3")
    return [size for size in _SIZES if any(world.value(name, f"k{size}") != b"v" * size for name in names)]


def test_entries_of_every_size_are_replicated_whole() -> None:
    assert sizes_not_replicated(ALL_ON) == []


def test_without_the_guard_a_chunked_entry_never_leaves() -> None:
    """The table of messages has no chunks either: the second lock on the same door."""
    with pytest.raises(FrameError, match="transmission"):
        sizes_not_replicated(without("whole_entries"))


def test_the_library_breaks_entries_near_multiples() -> None:
    broken = []
    for size in _SIZES:
        with bare_network() as network:
            names = ["a", "b", "c"]
            nodes: list[BareRegister] = [make(name, names, appendEntriesBatchSizeBytes=_BATCH) for name in names]
            elect(nodes[0])
            network.deliver()
            step(nodes, network, 3)
            nodes[0].put("k", b"v" * size)
            if not _replicated(nodes, network, b"v" * size):
                broken.append(size)
    assert broken


def _replicated(nodes: list[BareRegister], network: Any, value: bytes) -> bool:
    try:
        step(nodes, network, 10)
    except Exception:  # noqa: BLE001 (whatever the unpickler makes of a wrong chunk)
        return False
    return all(node.values.get("k") == value for node in nodes)
