"""The state as bytes and back: rows as raw arrays, records as msgpack, one versioned stream; and its digest.

Freezing copies no rows (see `columns.TableView`) and only the dictionaries of records, which are immutable. What can be
derived (queues, indexes, timer buckets) is not written, nor is where anything lies in memory: names are written with
their rows. So replicas that are in the same state write the same bytes, whatever each went through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from typing import Any

import msgpack
import numpy as np

from coordinator.machine import accessrecords, copyrecords, graphrecords, taskrecords
from coordinator.machine.arena import gathered
from coordinator.machine.codec import result_of, result_parts
from coordinator.machine.columns import FREE, SideTable, SlotTable, TableView, said
from coordinator.machine.faults import InvariantBroken
from coordinator.machine.levels import LEVEL, OLDEST, REFUSALS, TooNew, beyond
from coordinator.machine.namespaces import Quotas
from coordinator.machine.requests import Remembered
from coordinator.machine.state import Lock, State, Waiter
from coordinator.machine.values import row_of

PLAIN_FORMAT, FORMAT = 6, 7
"""Of the frozen bytes. A state of the oldest level is written in PLAIN_FORMAT, which a node of the release before
levels can install; any other in FORMAT, which says the level and whose slots were before. Another format is refused,
not guessed at (5 did not know of access tokens and had all of a lease in its row)."""

MAGIC = "holdfast-machine"
COUNTERS = (
    "revision", "now_ms", "last_token", "last_waiter", "last_set", "first_rank", "last_rank", "reclaimed",
    "generation_shift", "last_sequence", "last_turn", "last_worker",
)  # fmt: skip
RECORDS_AT_ONCE = 1_000
FED_BYTES = 1 << 20
MAX_PIECE_BYTES = 1 << 28
_QUOTAS_ROW, _LOCK_ROW, _WAITER_ROW = row_of(Quotas), row_of(Lock), row_of(Waiter)


class FormatError(ValueError):
    """A frozen state that this version cannot read."""


def _tables(state: State) -> tuple[SlotTable, ...]:
    leases = state.leases, state.leases.extras, state.holders
    plain = state.names, *leases, state.sessions, state.resources, state.edges, state.tasks
    return plain if state.level == OLDEST else (*plain, state.formers)


class FrozenMachine:
    """The state at one index. Read once, on any thread, while the machine moves on."""

    def __init__(self, state: State) -> None:
        self._level = state.level
        self._counters = [getattr(state, name) for name in COUNTERS]
        self._views = [table.freeze() for table in _tables(state)]
        self._beside = [isinstance(table, SideTable) for table in _tables(state)]
        self._segments = state.names.arena.segments.copy()
        self._namespaces = [
            [space.name, space.number, space.acyclic, _QUOTAS_ROW(space.quotas), tuple(space.used)]
            for _, space in sorted(state.namespaces.by_name.items())
        ]
        self._locks = state.locks.copy()
        self._waiters = state.waiters.copy()
        self._closing = list(state.closing)
        self._graph = graphrecords.written(state)
        self._dispatch = taskrecords.FrozenDispatch(state)
        self._copies = copyrecords.FrozenCopies(state.copies)
        self._access = accessrecords.FrozenAccess(state.access)
        self._requests = state.requests.remembered.copy()
        self._refusals = state.refusals.remembered.copy()
        self._read = False

    def chunks(self) -> Iterator[bytes]:
        if self._read:
            raise InvariantBroken("a frozen state is read once: what was read need not be kept unchanged any more")
        self._read = True
        try:
            yield from self._chunks()
        finally:
            # Also when the reader gave up halfway: the machine need not keep anything unchanged any more.
            for view in self._views:
                view.release()

    def _chunks(self) -> Iterator[bytes]:
        kind = [PLAIN_FORMAT] if self._level == OLDEST else [FORMAT, self._level]
        yield _packed([MAGIC, *kind, *self._counters])
        for place, view in enumerate(self._views):
            yield _packed([view.used, view.free_head, view.live])
            for piece in self._pieces(place, view):
                yield _packed(piece)
        for records in self._records():
            yield _packed(len(records))
            for start in range(0, len(records), RECORDS_AT_ONCE):
                yield _packed(records[start : start + RECORDS_AT_ONCE])
        for rows in self._dispatch.pieces():
            yield _packed(rows)
        yield _packed("end")

    def _records(self) -> Iterator[list[Any]]:
        yield self._namespaces
        yield [[key, *_LOCK_ROW(lock)] for key, lock in sorted(self._locks.items())]
        yield [_WAITER_ROW(waiter) for _, waiter in sorted(self._waiters.items())]
        yield self._closing
        yield from self._graph
        yield from self._copies.records()
        yield from self._access.records()
        yield _remembered(self._requests)
        if self._level >= REFUSALS:
            yield _remembered(self._refusals)
        yield from self._dispatch.records()

    def digest(self) -> bytes:
        """Of everything that decides how the machine will answer; not of where in memory it lies."""
        total = blake2b(digest_size=16)
        total.update(b"" if self._level == OLDEST else _packed(self._level))
        total.update(_packed(self._counters[1:]))
        for place, view in enumerate(self._views):
            total.update(_packed([view.used, view.free_head, view.live]))
            for piece in self._pieces(place, view):
                total.update(piece)
        for records in chain(self._records(), self._dispatch.pieces()):
            total.update(_packed(records))
        return total.digest()

    def _pieces(self, place: int, view: TableView) -> Iterator[bytes]:
        """The rows as bytes. Rows of names come without their offsets and are followed by the names themselves; of a
        table beside another only those that say something, each piece after their slots, and nothing after the last."""
        first = 0
        for region in view.regions():
            if place == 0:
                live = region["state"] != FREE
                offsets, lengths = region["offset"][live], region["length"][live].astype(np.int64)
                region["offset"] = 0
                yield region.tobytes()
                yield gathered(self._segments, offsets, lengths)
            elif not self._beside[place]:
                yield region.tobytes()
            elif len((rows := said(first, region))[0]):
                yield from map(np.ndarray.tobytes, rows)
            first += len(region)
        if self._beside[place]:
            yield b""


def _remembered(requests: dict[bytes, Remembered]) -> list[Any]:
    return [
        [key, kept.expires_ms, kept.fingerprint, kept.asked, result_parts(kept.result)]
        for key, kept in requests.items()
    ]


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


# --- reading --------------------------------------------------------------------------------------------------------


def _pieces(chunks: Iterable[bytes]) -> Iterator[Any]:
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=MAX_PIECE_BYTES)
    for chunk in chunks:
        # A chunk may be the whole snapshot; it goes in by parts that the unpacker has room for.
        for start in range(0, len(chunk), FED_BYTES):
            unpacker.feed(chunk[start : start + FED_BYTES])
            yield from unpacker


def read(chunks: Iterable[bytes], known_level: int = LEVEL) -> State:
    """A new state from what `FrozenMachine.chunks` wrote, however it was cut since. TooNew if a newer release did."""
    pieces = _pieces(chunks)
    try:
        return _read(pieces, known_level)
    except FormatError:
        raise
    except StopIteration:
        raise FormatError("this state ends too early; it was cut off") from None
    except (TypeError, ValueError, KeyError, IndexError, InvariantBroken, msgpack.UnpackException) as error:
        raise FormatError(f"this state is damaged: {error}") from error


def _begin(header: Any, known_level: int) -> State:
    """A state of the level that the header says, with its counters."""
    if not isinstance(header, tuple) or header[:1] != (MAGIC,) or type(header[1]) is not int:
        raise FormatError("this is no state of the machine")
    kind, *counters = header[1:]
    if kind > FORMAT:
        raise TooNew(
            f"the state is of format {kind}, and this node reads up to {FORMAT}: start it with a newer release"
        )
    if kind < PLAIN_FORMAT:
        raise FormatError(f"this state is of format {kind}; restore it with the version that wrote it")
    state = State(known_level)
    if kind == FORMAT:
        state.level, *counters = counters
        if type(state.level) is not int or state.level <= OLDEST:
            raise FormatError("this state says no level that its format could have")
        if state.level > known_level:
            raise beyond(state.level, known_level)
    for counter, value in zip(COUNTERS, counters, strict=True):
        setattr(state, counter, value)
    return state


def _read(pieces: Iterator[Any], known_level: int) -> State:
    state = _begin(next(pieces), known_level)
    for table in _tables(state):
        used, free_head, live = next(pieces)
        table.restore(used, free_head, live, pieces)
    for row in _read_records(pieces):
        name, number, acyclic, quotas, used = row
        namespace = state.namespaces.add(name, number, Quotas(*quotas))
        namespace.acyclic, namespace.used[:] = acyclic, used
    for key, mode, permits, holders, *rest in _read_records(pieces):
        state.locks[key] = Lock(mode, permits, tuple(holders), *rest)
    for row in _read_records(pieces):
        state.waiters[row[0]] = Waiter(*row)
    state.closing = dict.fromkeys(_read_records(pieces))
    graphrecords.read(state, lambda: _read_records(pieces))
    copyrecords.read(state.copies, lambda: _read_records(pieces))
    accessrecords.read(state.access, lambda: _read_records(pieces))
    for memory in (state.requests, state.refusals)[: 2 if state.level >= REFUSALS else 1]:
        memory.restore(
            {
                key: Remembered(expires_ms, print_, result_of(parts), asked)
                for key, expires_ms, print_, asked, parts in _read_records(pieces)
            }
        )
    taskrecords.read(state, lambda: _read_records(pieces), pieces)
    if next(pieces) != "end":
        raise FormatError("this state does not end where it should")
    state.derive()
    return state


def _read_records(pieces: Iterator[Any]) -> list[Any]:
    count = next(pieces)
    records: list[Any] = []
    while len(records) < count:
        records.extend(next(pieces))
    return records


def digest(state: State) -> bytes:
    return FrozenMachine(state).digest()
