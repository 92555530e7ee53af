"""The small files of a data directory: replaced whole or not at all, and never read when they are not as written."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from cluster.guards import ALL_ON
from cluster.options import ClusterOptions
from cluster.ports import Member
from cluster.recordfile import RecordFile, RecordFileCorrupt
from cluster.storage import Storage, open_storage
from tests.sim.disk import SimDisk
from tests.storage.support import InlineScheduler, crash_points, unexpected_fatal

DIRECTORY = "/data"
MEMBERS = (Member("n1", "h1:1", "h1:2"), Member("n2", "h2:1", "h2:2"))
FILES = ("identity", "members")


def open_node(disk: SimDisk, members: tuple[Member, ...] = MEMBERS) -> Storage:
    return open_storage(
        ClusterOptions("n1", "c", DIRECTORY, members),
        disk=disk,
        scheduler=InlineScheduler(),
        random=random.Random(1),
        guards=ALL_ON,
        fatal=unexpected_fatal,
    )


def used_directory() -> SimDisk:
    disk = SimDisk()
    storage = open_node(disk)
    storage.identity.admits("n2", 7, 1)
    disk.kill()
    return disk


def refused(disk: SimDisk, name: str) -> None:
    """Opening says which file it is and what to do, and leaves the file as it is."""
    before = disk.content(f"{DIRECTORY}/{name}")
    with pytest.raises(RecordFileCorrupt, match=rf"{DIRECTORY}/{name} is damaged: .*holdfast member replace"):
        open_node(disk)
    assert disk.content(f"{DIRECTORY}/{name}") == before


def test_a_used_directory_opens_as_it_was() -> None:
    disk = used_directory()
    storage = open_node(disk, members=())
    assert storage.membership.members == MEMBERS
    assert storage.identity.admits("n2", 7, 1)
    assert not storage.identity.admits("n2", 8, 1)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_refused(name: str) -> None:
    disk = used_directory()
    for offset in range(len(disk.content(f"{DIRECTORY}/{name}"))):
        for bit in range(8):
            damaged = disk.copy()
            damaged.flip(f"{DIRECTORY}/{name}", offset, bit)
            refused(damaged, name)


Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: content[:-1], id="truncated"),
        pytest.param(lambda content: content[:4], id="its checksum only"),
        pytest.param(lambda content: b"", id="empty"),
        pytest.param(lambda content: bytes(4), id="four zeros"),
        pytest.param(lambda content: bytes(len(content)), id="zeros"),
        pytest.param(lambda content: content + b"\0", id="longer"),
        pytest.param(lambda content: content[4:], id="without a checksum"),
    ],
)
def test_a_file_of_another_length_is_refused(name: str, damage: Damage) -> None:
    disk = used_directory()
    path = f"{DIRECTORY}/{name}"
    disk.overwrite(path, damage(disk.content(path)))
    refused(disk, name)


def test_one_file_in_the_place_of_the_other_is_refused() -> None:
    disk = used_directory()
    disk.overwrite(f"{DIRECTORY}/members", disk.content(f"{DIRECTORY}/identity"))
    refused(disk, "members")


@pytest.mark.parametrize("power", [True, False])
def test_a_crash_leaves_the_old_content_or_the_new(power: bool) -> None:
    promised = b""

    def prepare(disk: SimDisk) -> None:
        disk.make_directory(DIRECTORY)
        RecordFile(disk, DIRECTORY, "name").write(b"old")

    def replace(disk: SimDisk) -> None:
        nonlocal promised
        promised = b"old"
        RecordFile(disk, DIRECTORY, "name").write(b"new and longer")
        promised = b"new and longer"

    seen = set()
    for disk in crash_points(replace, prepare, 12, power=power):
        found = RecordFile(disk, DIRECTORY, "name").read()
        assert found in (b"old", b"new and longer")
        assert promised in (b"old", found)
        # What was read once counts: a power cut after it must not take it back.
        disk.crash(random.Random(1))
        assert RecordFile(disk, DIRECTORY, "name").read() == found
        seen.add(found)
    assert seen == {b"old", b"new and longer"}
