"""What the storage tests share: opening a journal on a simulated disk, a scheduler without threads, crash points."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cluster.journal import Journal
from cluster.ports import Entry
from cluster.snapshots import SnapshotMeta, SnapshotStore
from tests.sim.disk import SimCrash, SimDisk

DIRECTORY = "/data"
IDENTITY = b"cluster/node-1"
CLUSTER = b"cluster"


def open_journal(disk: Any, **options: Any) -> Journal:
    options.setdefault("identity", IDENTITY)
    options.setdefault("segment_bytes", 4096)
    options.setdefault("retain_bytes", 0)
    # As good as nothing: what these tests look at was read back from the files.
    options.setdefault("memory_bytes", 100)
    return Journal(disk, options.pop("directory", DIRECTORY), **options)


def entry(index: int, term: int = 1, size: int = 20) -> Entry:
    """A command that depends on index and term only, as in a real log."""
    return (random.Random(f"{index}/{term}").randbytes(size), index, term)


def fill(journal: Journal, indexes: Iterable[int], term: int = 1, size: int = 20, *, each: bool = False) -> None:
    for index in indexes:
        journal.add(*entry(index, term, size))
        if each:
            journal.sync()
    journal.sync()


def state(journal: Journal) -> tuple[list[Entry], int, str | None]:
    return journal[:], journal.getCurrentTerm(), journal.getVotedForNodeId()


class InlineScheduler:
    """Background work happens at once, or, with `held`, when `run` is called."""

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        self._waiting: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        raise NotImplementedError

    def run_in_background(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        def job() -> None:
            error: BaseException | None = None
            try:
                work()
            except Exception as caught:  # noqa: BLE001 (as the port says: any error goes to `done`)
                error = caught
            done(error)

        if self.held:
            self._waiting.append(job)
        else:
            job()

    def run(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()


class Pieces:
    """A frozen state of some chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    def chunks(self) -> Iterator[bytes]:
        return iter(self._chunks)


def meta(index: int, term: int = 1) -> SnapshotMeta:
    return SnapshotMeta(entry(index, term), entry(index - 1, term), now_ms=index * 10, config=b"members")


def state_of(index: int) -> bytes:
    """What a machine at `index` would freeze: more than one block of it."""
    return random.Random(index).randbytes(3000) + bytes(700)


def unexpected_fatal(message: str) -> None:
    raise AssertionError(message)


def open_store(disk: Any, **options: Any) -> SnapshotStore:
    options.setdefault("identity", CLUSTER)
    options.setdefault("fatal", unexpected_fatal)
    scheduler = options.pop("scheduler", None) or InlineScheduler()
    return SnapshotStore(disk, options.pop("directory", DIRECTORY), scheduler, **options)


def loaded(store: SnapshotStore) -> bytes:
    pieces: list[bytes] = []
    store.load(pieces.extend)
    return b"".join(pieces)


def crash_points(
    scenario: Callable[[SimDisk], Any], prepare: Callable[[SimDisk], Any], seeds: int, *, power: bool = True
) -> Iterator[SimDisk]:
    """For each operation of `scenario` and each seed: a disk on which the power went out just before it.

    Without `power` only the process was killed then, and everything unsynced is still at risk.
    """
    position = 0
    while True:
        finished = False
        for seed in range(seeds):
            disk = SimDisk()
            prepare(disk)
            left = position

            def stop(name: str, path: str) -> None:
                nonlocal left
                if left == 0:
                    raise SimCrash(f"before {name} of {path}")
                left -= 1

            disk.on_operation = stop
            try:
                scenario(disk)
                finished = True
            except SimCrash:
                pass
            disk.on_operation = None
            if power:
                disk.crash(random.Random(f"{position}/{seed}"))
            else:
                disk.kill()
            yield disk
        if finished:
            return
        position += 1
