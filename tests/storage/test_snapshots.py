"""Snapshot files: taken, loaded, sent, received; damaged, foreign, and on a disk that says no."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from cluster.disk import RealDisk
from cluster.snapshots import (
    SnapshotCorrupt,
    SnapshotForeign,
    SnapshotMeta,
    SnapshotStore,
    SnapshotSuperseded,
    SnapshotVersion,
)
from tests.sim.disk import SimDisk
from tests.storage.support import DIRECTORY, InlineScheduler, Pieces, loaded, meta, open_store, state_of


def path_of(index: int) -> str:
    return f"{DIRECTORY}/snapshot-{index:020d}.snap"


def take(store: SnapshotStore, index: int) -> tuple[SnapshotMeta | None, BaseException | None]:
    answers: list[tuple[SnapshotMeta | None, BaseException | None]] = []
    store.take(meta(index), Pieces(state_of(index)), lambda taken, error: answers.append((taken, error)))
    assert len(answers) == 1
    return answers[0]


def send(content: bytes, store: SnapshotStore, index: int, *, source: str = "node-2", piece: int = 700) -> bool:
    answer = False
    for offset in range(0, len(content), piece):
        last = offset + piece >= len(content)
        answer = store.receive(offset, content[offset : offset + piece], is_last=last, source=source, index=index)
    return answer


def snapshot_bytes(index: int, **options: Any) -> bytes:
    disk = SimDisk()
    take(open_store(disk, **options), index)
    return disk.content(path_of(index))


# --- taking and loading ---------------------------------------------------------------------------------------


def test_take_load_and_keep_one() -> None:
    disk = SimDisk()
    store = open_store(disk)
    assert store.latest() is None
    assert store.reader() is None
    assert take(store, 10) == (meta(10), None)
    assert take(store, 20) == (meta(20), None)
    assert disk.names(DIRECTORY) == [f"snapshot-{20:020d}.snap"]
    disk.crash(random.Random(1))
    store = open_store(disk)
    assert store.latest() == meta(20)
    assert loaded(store) == state_of(20)
    assert (meta(20).index, meta(20).term) == (20, 1)


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (300_000, 5), (262_144,), (100,) * 5000])
def test_any_chunks_round_trip(sizes: tuple[int, ...]) -> None:
    chunks = [random.Random(size).randbytes(size) for size in sizes]
    store = open_store(SimDisk())
    store.take(meta(5), Pieces(*chunks), lambda taken, error: None)
    assert loaded(store) == b"".join(chunks)


def test_one_at_a_time_and_never_backwards() -> None:
    scheduler = InlineScheduler(held=True)
    disk = SimDisk()
    store = open_store(disk, scheduler=scheduler)
    answers: list[tuple[SnapshotMeta | None, BaseException | None]] = []
    store.take(meta(10), Pieces(state_of(10)), lambda taken, error: answers.append((taken, error)))
    assert store.busy
    with pytest.raises(RuntimeError):
        store.take(meta(11), Pieces(b""), lambda taken, error: None)
    assert send(snapshot_bytes(30), store, 30)
    scheduler.run()
    assert isinstance(answers[0][1], SnapshotSuperseded)
    assert not store.busy
    assert store.latest() == meta(30)
    assert disk.names(DIRECTORY) == [f"snapshot-{30:020d}.snap"]


def test_a_snapshot_taken_meanwhile_beats_an_older_one_received() -> None:
    store = open_store(SimDisk())
    content = snapshot_bytes(20)
    store.receive(0, content[:500], is_last=False, source="node-2", index=20)
    take(store, 25)
    assert not store.receive(500, content[500:], is_last=True, source="node-2", index=20)
    assert store.latest() == meta(25)
    assert loaded(store) == state_of(25)


@pytest.mark.parametrize("operation", ["create", "pwrite", "fdatasync", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_take_leaves_the_old_one(operation: str, code: int) -> None:
    disk = SimDisk()
    store = open_store(disk)
    take(store, 10)
    disk.fail_next(operation, OSError(code, "refused"))
    taken, error = take(store, 20)
    assert taken is None
    assert isinstance(error, OSError)
    assert store.latest() == meta(10)
    assert disk.names(DIRECTORY) == [f"snapshot-{10:020d}.snap"]
    assert not store.busy
    assert take(store, 21) == (meta(21), None)


def test_a_directory_that_cannot_be_synced_is_fatal() -> None:
    said: list[str] = []
    disk = SimDisk()
    store = open_store(disk, fatal=said.append)
    take(store, 10)
    disk.fail_next("sync_directory", OSError(errno.EIO, "broken"))
    assert take(store, 20)[0] is None
    assert "cannot be synced" in said[0]
    assert store.latest() == meta(10)


def test_a_broken_freeze_is_reported() -> None:
    class Broken:
        def chunks(self) -> Iterator[bytes]:
            yield b"some"
            raise ValueError("bug")

    disk = SimDisk()
    store = open_store(disk)
    answers: list[BaseException | None] = []
    store.take(meta(10), Broken(), lambda taken, error: answers.append(error))
    assert isinstance(answers[0], ValueError)
    assert disk.names(DIRECTORY) == []


def test_real_disk_and_a_real_thread(tmp_path: Path) -> None:
    class Threads(InlineScheduler):
        def run_in_background(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            done(None)

    for index in (10, 20):
        store = open_store(RealDisk(), directory=str(tmp_path), scheduler=Threads())
        assert take(store, index) == (meta(index), None)
        assert loaded(store) == state_of(index)
    assert [path.name for path in tmp_path.iterdir()] == [f"snapshot-{20:020d}.snap"]
    reader = store.reader()
    assert reader is not None
    take(store, 30)
    assert reader.read(0, reader.size) == snapshot_bytes(20)
    reader.close()


# --- damage ---------------------------------------------------------------------------------------------------


def test_every_flip_is_detected_before_anything_is_restored() -> None:
    disk = SimDisk()
    take(open_store(disk), 10)
    size = len(disk.content(path_of(10)))
    for offset in range(size):
        damaged = disk.copy()
        damaged.flip(path_of(10), offset, offset % 8)
        restored: list[bytes] = []
        with pytest.raises(SnapshotCorrupt):
            open_store(damaged).load(restored.extend)
        assert restored == []


def test_damage_far_behind_is_found_before_anything_is_restored() -> None:
    disk = SimDisk()
    store = open_store(disk)
    store.take(meta(10), Pieces(random.Random(1).randbytes(3 << 20)), lambda taken, error: None)
    disk.flip(path_of(10), 3 << 20, 0)
    restored: list[bytes] = []
    with pytest.raises(SnapshotCorrupt):
        store.load(restored.extend)
    assert restored == []


def test_truncation_and_trailing_bytes_are_detected() -> None:
    content = snapshot_bytes(10)
    for changed in (b"", content[:5], content[:40], content[:-1], content[: len(content) // 2], content + b"\0"):
        disk = SimDisk()
        disk.make_directory(DIRECTORY)
        disk.overwrite(path_of(10), changed)
        with pytest.raises(SnapshotCorrupt, match="member replace"):
            loaded(open_store(disk))


def test_a_damaged_newest_snapshot_is_not_skipped() -> None:
    disk = SimDisk()
    take(open_store(disk), 10)
    disk.overwrite(path_of(20), snapshot_bytes(20)[:100])
    with pytest.raises(SnapshotCorrupt):
        open_store(disk)
    assert disk.content(path_of(10))


def test_foreign_version_and_renamed() -> None:
    disk = SimDisk()
    take(open_store(disk), 10)
    with pytest.raises(SnapshotForeign, match="another"):
        open_store(disk.copy(), identity=b"another")
    content = disk.content(path_of(10))
    newer = content[:8] + (9).to_bytes(4, "little")
    disk.overwrite(path_of(10), newer + crc32(newer).to_bytes(4, "little") + content[16:])
    with pytest.raises(SnapshotVersion, match="format 9"):
        open_store(disk)
    disk.overwrite(path_of(11), content)
    with pytest.raises(SnapshotCorrupt, match="index 10"):
        open_store(disk)


# --- sending and receiving ------------------------------------------------------------------------------------


def test_a_reader_outlives_the_file() -> None:
    disk = SimDisk()
    store = open_store(disk)
    take(store, 10)
    content = disk.content(path_of(10))
    reader = store.reader()
    assert reader is not None
    take(store, 20)
    assert reader.meta == meta(10)
    assert b"".join(reader.read(offset, 333) for offset in range(0, reader.size, 333)) == content
    reader.close()


@pytest.mark.parametrize("piece", [1, 700, 1 << 20])
def test_received_snapshot_becomes_the_latest(piece: int) -> None:
    disk = SimDisk()
    store = open_store(disk)
    take(store, 10)
    assert send(snapshot_bytes(20), store, 20, piece=piece)
    disk.crash(random.Random(2))
    store = open_store(disk)
    assert store.latest() == meta(20)
    assert loaded(store) == state_of(20)


def test_pieces_out_of_order_are_refused_until_it_starts_again() -> None:
    content = snapshot_bytes(20)
    disk = SimDisk()
    store = open_store(disk)

    def receive(start: int, stop: int, source: str = "node-2", index: int = 20) -> bool:
        last = stop >= len(content)
        return store.receive(start, content[start:stop], is_last=last, source=source, index=index)

    for wrong in ((1000, 2000), (400, 900), (500, 900, "node-3"), (500, 900, "node-2", 21)):
        assert not receive(0, 500)
        assert not receive(*wrong)
        assert store.last_error is not None
        assert not receive(500, len(content))
        assert store.latest() is None
        assert disk.names(DIRECTORY) == []
    assert not receive(0, 500)
    assert receive(500, len(content))
    assert store.last_error is None


def test_received_bytes_never_stop_the_node() -> None:
    content = snapshot_bytes(20)
    rng = random.Random(5)
    disk = SimDisk()
    store = open_store(disk)
    for _ in range(500):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        assert not send(bytes(damaged), store, 20)
    for bad in (b"", b"junk" * 100, content[:-1], content + b"\0", snapshot_bytes(20, identity=b"other")):
        assert not send(bad, store, 20)
    assert not send(content, store, 19)
    assert disk.names(DIRECTORY) == []
    assert store.latest() is None


def test_received_bytes_are_bounded_and_never_step_back() -> None:
    content = snapshot_bytes(20)
    disk = SimDisk()
    assert not send(content, open_store(disk, max_bytes=len(content) - 1), 20)
    store = open_store(disk)
    take(store, 20)
    assert not send(content, store, 20)
    assert not send(snapshot_bytes(12), store, 12)
    assert store.last_error is not None
    assert "here already" in store.last_error


@pytest.mark.parametrize("operation", ["create", "pwrite", "fdatasync", "rename"])
def test_a_disk_error_while_receiving_refuses_the_snapshot(operation: str) -> None:
    content = snapshot_bytes(20)
    disk = SimDisk()
    store = open_store(disk)
    disk.fail_next(operation, OSError(errno.ENOSPC, "no space left"))
    assert not send(content, store, 20)
    assert disk.names(DIRECTORY) == []
    assert send(content, store, 20)
