"""The entries of a log, one behind the other: term, size and place of each, and the bytes of the youngest.

What was synced long enough ago is in its file and nowhere else, so that a long log costs no memory: it is read back, by
whole batches and checked again, when a follower is far behind or a node starts. The first two entries and the last stay
once they were asked for, because they are asked for all the time: where the log begins, which snapshot it continues,
where it ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, overload

from cluster.records import ENTRY, Record, read_record, record_bytes
from cluster.segments import ADVICE, JournalCorrupt

if TYPE_CHECKING:
    from cluster.ports import Entry

READ_BYTES = 1 << 20
"""Read from a file at once, unless a single entry is larger."""
ENTRY_BYTES = 64
"""What even an empty entry costs whoever is sent it, as bytes."""
PINNED = 2
UNWRITTEN = 0
"""In the place of a segment's number, which is never 0."""


class Files(Protocol):
    """Where entries were written to."""

    def read(self, sequence: int, offset: int, size: int) -> tuple[bytes, int, str]:
        """So many bytes of a segment, what its checksums start from, and its path."""


class Entries:
    """By position; the first has index `first`. Of the commands `memory_bytes` stay in memory, the youngest."""

    def __init__(self, files: Files, memory_bytes: int) -> None:
        self._files = files
        self._memory_bytes = memory_bytes
        self.first = 0
        """Of no meaning while there are none; `last` and `last_term` are 0 then."""
        self._terms = array("Q")
        self._sizes = array("Q")
        self._segments = array("Q")
        self._offsets = array("Q")
        self._commands: list[bytes | None] = []
        """None: only in its file."""
        self._held_bytes = 0
        self._swept = 0
        """Commands before this position are only in their files, but for the first two."""

    def __len__(self) -> int:
        return len(self._terms)

    @property
    def last(self) -> int:
        return self.first + len(self._terms) - 1 if self._terms else 0

    @property
    def last_term(self) -> int:
        return self._terms[-1] if self._terms else 0

    @property
    def held_bytes(self) -> int:
        """The bytes of the commands that are in memory."""
        return self._held_bytes

    def term(self, position: int) -> int:
        return self._terms[position]

    def size(self, position: int) -> int:
        return self._sizes[position]

    def bytes_between(self, start: int, stop: int | None = None) -> int:
        return sum(self._sizes[start:stop])

    # --- reading --------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, item: int) -> Entry: ...

    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        if isinstance(item, int) and (held := self._commands[item]) is not None:
            return held, self.first + (item if item >= 0 else len(self._commands) + item), self._terms[item]
        positions = range(len(self))[item]
        if isinstance(positions, range):
            return [entry for run in self._runs(positions) for entry in self._read(run)]
        entry = self._read(range(positions, positions + 1))[0]
        if self._commands[positions] is None and (positions < PINNED or positions == len(self) - 1):
            self._commands[positions] = entry[0]
            self._held_bytes += len(entry[0])
            self._swept = min(self._swept, positions)
        return entry

    def __iter__(self) -> Iterator[Entry]:
        """Not to be changed meanwhile."""
        for run in self._runs(range(len(self))):
            yield from self._read(run)

    def within(self, start: int, count: int | None, budget: int) -> list[Entry]:
        """From `start` on at most `count`, and no more bytes than `budget` unless the first alone has more."""
        sizes = self._sizes
        stop = min(len(sizes), start + (len(sizes) if count is None else count))
        end = start
        while end < stop:
            budget -= sizes[end] + ENTRY_BYTES
            if budget < 0 and end > start:
                break
            end += 1
        return self[start:end]

    def outlines(self, start: int, count: int) -> list[Entry]:
        """Index and term, with no command (which is never empty): nothing is read for them."""
        stop = min(len(self), start + count)
        return [(b"", self.first + position, self._terms[position]) for position in range(start, stop)]

    def _runs(self, positions: range) -> Iterator[range]:
        """What can be taken from memory together, or from one file in one read."""
        start = positions.start
        for at in positions[1:]:
            here, before = self._commands[at] is None, self._commands[at - 1] is None
            if here == before and (not here or self._together(start, at)):
                continue
            yield range(start, at)
            start = at
        if positions:
            yield range(start, positions.stop)

    def _together(self, start: int, at: int) -> bool:
        same = self._segments[at] == self._segments[start]
        return same and 0 <= self._offsets[at] - self._offsets[start] <= READ_BYTES - record_bytes(self._sizes[at])

    def _read(self, run: range) -> list[Entry]:
        first = self.first
        if self._commands[run.start] is not None:
            return [(self._commands[at] or b"", first + at, self._terms[at]) for at in run]
        sequence, offset = self._segments[run.start], self._offsets[run.start]
        end = self._offsets[run[-1]] + record_bytes(self._sizes[run[-1]])
        data, seed, path = self._files.read(sequence, offset, end - offset)
        found: list[Entry] = []
        for at in run:
            place = self._offsets[at] - offset
            record = read_record(data, place, seed) if place < len(data) else None
            wanted = (ENTRY, first + at, self._terms[at])
            if not isinstance(record, Record) or (record.kind, record.index, record.term) != wanted:
                raise JournalCorrupt(
                    f"{path} does not have entry {first + at} at offset {offset + place}, where it was put. {ADVICE}"
                )
            found.append((record.body, first + at, self._terms[at]))
        return found

    # --- changing -------------------------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Not written anywhere yet."""
        self._add(entry[1], entry[2], len(entry[0]), UNWRITTEN, 0, entry[0])
        self._held_bytes += len(entry[0])

    def append_written(self, record: Record, sequence: int) -> None:
        """From its file, where it stays."""
        offset = record.end - record_bytes(record.size)
        self._add(record.index, record.term, record.size, sequence, offset, None)

    def _add(self, index: int, term: int, size: int, sequence: int, offset: int, command: bytes | None) -> None:
        if not self._terms:
            self.first = index
        self._terms.append(term)
        self._sizes.append(size)
        self._segments.append(sequence)
        self._offsets.append(offset)
        self._commands.append(command)

    def written(self, index: int, sequence: int, offset: int) -> None:
        """The entry of this index, if it is still here, is in its file for good."""
        position = index - self.first
        if 0 <= position < len(self):
            self._segments[position], self._offsets[position] = sequence, offset

    def sweep(self) -> None:
        """Lets go of the oldest commands, as far as they are written, until no more than `memory_bytes` are left."""
        at, last = max(self._swept, PINNED), len(self) - 1
        while at < last and self._held_bytes > self._memory_bytes and self._segments[at] != UNWRITTEN:
            self._held_bytes -= len(self._commands[at] or b"")
            self._commands[at] = None
            at += 1
        self._swept = at

    def cut(self, position: int) -> Entries:
        """Takes away and answers what is at this position and behind it."""
        tail = Entries(self._files, self._memory_bytes)
        tail.extend(self, position)
        for column in self._columns:
            del column[position:]
        self._held_bytes -= tail._held_bytes
        self._swept = min(self._swept, position)
        return tail

    def drop(self, position: int) -> None:
        """Lets go of what is before this position."""
        self._held_bytes -= sum(len(command or b"") for command in self._commands[:position])
        for column in self._columns:
            del column[:position]
        self.first += position
        self._swept = max(0, self._swept - position)

    def extend(self, other: Entries, start: int, stop: int | None = None) -> None:
        """By a part of `other`, which goes on where this ends."""
        part = slice(start, stop)
        if not self._terms:
            self.first = other.first + start
        self._held_bytes += sum(len(command or b"") for command in other._commands[part])
        for column, more in zip(self._columns, other._columns, strict=True):
            column.extend(more[part])

    @property
    def _columns(self) -> tuple[Any, ...]:
        return self._terms, self._sizes, self._segments, self._offsets, self._commands
