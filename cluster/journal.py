"""The log of one node: entries, term and vote, in segments for good and the youngest entries in memory too.

`Journal` answers to the Raft library's own method names, so that the engine can hand it over as it is. Writes are
collected and become durable at `sync()`, one fdatasync for all of them: the driver calls it before any frame leaves.
After a disk error nothing is durable any more and every further call raises the same JournalFailed; an fdatasync is
never tried again, because the kernel may have dropped the pages it failed to write. So it is after bytes that cannot be
read back, or are others than were written: the library swallows errors while it loads a snapshot (H2), and goes on.

Truncation is provisional (hazard H3): the library cuts the tail on every append message, conflict or not, and entries
cut there may have been acknowledged. So a cut tail waits until the message ends: equal entries coming again take
their old place without a write, and only a different one makes the cut real.

File format: `records`, `segments`. Reading back: `replay` at start, `entries` while running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, overload

from cluster.entries import Entries
from cluster.options import MIB
from cluster.records import ENTRY, HARD, RESET, TRUNCATE
from cluster.replay import JournalGuards, join_snapshot, replay
from cluster.segments import (
    HardState,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalForeign,
    JournalHole,
    JournalMisuse,
    JournalVersion,
    Pending,
    SegmentWriter,
    StopsOnError,
    encode_vote,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.ports import Disk, Entry

__all__ = [
    "Journal",
    "JournalCorrupt",
    "JournalError",
    "JournalFailed",
    "JournalForeign",
    "JournalGuards",
    "JournalHole",
    "JournalMisuse",
    "JournalVersion",
]


class Journal:
    """One thread, one owner of the directory. See the module for the order of calls."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        identity: bytes,
        segment_bytes: int = 64 * MIB,
        retain_bytes: int = 16 * MIB,
        memory_bytes: int = 8 * MIB,
        reserve_bytes: int = 0,
        snapshot: tuple[Entry, Entry] | None = None,
        guards: JournalGuards | None = None,
    ) -> None:
        """Open or create. `snapshot` is (prev, last) of the newest snapshot, durable before this call.

        Of the entries no more than `memory_bytes` stay in memory once they are durable.
        """
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._retain_bytes = retain_bytes
        self._guards = guards or JournalGuards()
        self._memory_bytes = memory_bytes
        self._bytes = 0
        self._hard: HardState = (0, None)
        self._hard_dirty = False
        self._pending: list[Pending] = []
        # What deleteEntriesFrom or clear took away in this message.
        self._cut: Entries | None = None
        self._cleared = False
        self._drop_wanted = False
        self._failure: JournalError | None = None
        self.on_add: Callable[[int, bytes], None] | None = None
        self.on_truncate: Callable[[int], None] | None = None
        self._writer = SegmentWriter(disk, directory, identity, fsync=self._guards.fsync, reserve_bytes=reserve_bytes)
        self._log = Entries(self._writer, memory_bytes)
        with self._stops_on_error("open"):
            self._open(disk, identity, snapshot)

    def _open(self, disk: Disk, identity: bytes, snapshot: tuple[Entry, Entry] | None) -> None:
        disk.make_directory(self._directory)
        state = replay(disk, self._directory, identity, snapshot, self._writer, self._guards, self._memory_bytes)
        self._hard = state.hard
        self._writer.closed = state.closed
        joined = self._join(state.entries, snapshot)
        if joined is None and snapshot is not None:
            # A crash between installing a snapshot and clearing the log leaves this. Term and vote stay.
            self._pending.append((RESET, 0, 0, b""))
            for entry in snapshot:
                self._append(entry)
        else:
            self._log = state.entries if joined is None else joined
            self._bytes = self._log.bytes_between(0)
        self._drop_wanted = True
        self.sync()

    def _join(self, entries: Entries, snapshot: tuple[Entry, Entry] | None) -> Entries | None:
        if snapshot is not None and not self._guards.align_snapshot:
            return entries
        try:
            return join_snapshot(entries, snapshot, self._directory)
        except JournalHole:
            if self._guards.detect_hole:
                raise
            return entries

    # --- reading ----------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, item: int) -> Entry: ...

    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        self._check()
        with self._stops_on_error("read"):
            return self._log[item]

    def __iter__(self) -> Iterator[Entry]:
        with self._stops_on_error("read"):
            yield from self._log

    def within(self, start: int, count: int | None, budget: int) -> list[Entry]:
        """Entries from this position on: at most `count`, of `budget` bytes, or a single larger one."""
        with self._stops_on_error("read"):
            return self._log.within(start, count, budget)

    def outlines(self, start: int, count: int) -> list[Entry]:
        """The same for those who only look at index and term: the commands are left out and nothing is read."""
        return self._log.outlines(start, count)

    def __len__(self) -> int:
        return len(self._log)

    @property
    def dirty(self) -> bool:
        """Is anything not durable yet?"""
        return bool(self._pending)

    @property
    def hard_dirty(self) -> bool:
        """Is the term or the vote not durable yet?"""
        return self._hard_dirty

    @property
    def first_index(self) -> int:
        """0 while the log is empty, like `last_index` and `last_term`."""
        return self._log.first if self._log else 0

    @property
    def last_index(self) -> int:
        return self._log.last

    @property
    def last_term(self) -> int:
        return self._log.last_term

    def term_at(self, index: int) -> int | None:
        position = index - self.first_index
        return self._log.term(position) if 0 <= position < len(self._log) else None

    @property
    def log_bytes(self) -> int:
        """The bytes of all commands, a provisionally cut tail included."""
        return self._bytes

    @property
    def held_bytes(self) -> int:
        """The bytes of the commands that are in memory."""
        return self._log.held_bytes

    # --- entries ----------------------------------------------------------------------------------------------

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._check()
        entry = (command, idx, term)
        if self._cut is not None:
            with self._stops_on_error("read"):
                if self._take_back(self._cut, entry):
                    return
        self._append(entry)

    def _append(self, entry: Entry) -> None:
        log = self._log
        if log and entry[1] != log.last + 1:
            raise JournalMisuse(f"entry {entry[1]} added behind entry {log.last}")
        log.append(entry)
        self._bytes += len(entry[0])
        self._pending.append((ENTRY, entry[1], entry[2], entry[0]))
        if self.on_add is not None:
            self.on_add(entry[1], entry[0])

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 (the library's names)
        """Cut the tail from this position on, until the end of the message or a conflict decides about it."""
        self._check()
        gone = self._log.cut(entryFrom)
        if not gone:
            return
        first, before = gone.first, self._cut
        if before is not None and first < before.first:
            gone.cut(before.first - first)
            gone.extend(before, 0)
        if before is None or first < before.first:
            self._cut = gone
        if not self._guards.soft_truncation and self._cut is not None:
            self._make_cut_real(self._cut, first)

    def clear(self) -> None:
        """Forget every entry; what then comes again as it was, and what followed it, stays.

        The library clears when it installs a snapshot, and a follower may hold acknowledged entries behind that
        snapshot's end (Raft, section 7: if the log has the snapshot's last entry, what follows is retained).
        """
        self._check()
        if not self._log and self._cut is None:
            return
        self.deleteEntriesFrom(0)
        if self._guards.soft_truncation:
            self._cleared = True
        else:
            self._pending.append((RESET, 0, 0, b""))

    def end_message(self) -> None:
        """The message is handled: a cut tail that met no conflict is back in its place."""
        self._check()
        cut = self._cut
        if cut is None:
            return
        if self._cleared and not self._log:
            self._reset(cut)
            return
        self._cut, self._cleared = None, False
        self._log.extend(cut, self._log.last + 1 - cut.first if self._log else 0)
        self._log.sweep()

    def _take_back(self, cut: Entries, entry: Entry) -> bool:
        """Put an entry that was cut back in its place. If it differs the cut becomes real, and False is returned."""
        index = entry[1]
        position = index - cut.first
        if not self._log and self._cleared:
            if not 0 <= position < len(cut) or cut[position] != entry:
                self._reset(cut)
                return False
        elif index != (self._log.last + 1 if self._log else cut.first):
            raise JournalMisuse(f"entry {index} added behind entry {self.last_index}")
        if position == len(cut):
            self._cut, self._cleared = None, False
            return False
        if cut[position] != entry:
            self._make_cut_real(cut, index)
            return False
        if not self._log and position:
            # The first entry after clear(): those before it are trimmed, as deleteEntriesTo would.
            self._bytes -= cut.bytes_between(0, position)
            self._drop_wanted = True
        self._log.extend(cut, position, position + 1)
        return True

    def _make_cut_real(self, cut: Entries, index: int) -> None:
        self._cut, self._cleared = None, False
        self._bytes -= cut.bytes_between(index - cut.first)
        self._pending.append((TRUNCATE, index, 0, b""))
        if self.on_truncate is not None:
            self.on_truncate(index)

    def _reset(self, cut: Entries) -> None:
        self._cut, self._cleared = None, False
        self._bytes = 0
        self._pending.append((RESET, 0, 0, b""))
        self._drop_wanted = True
        if self.on_truncate is not None:
            self.on_truncate(cut.first)

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        """Let go of the entries before this position, which a durable snapshot covers.

        The youngest of them, up to `retain_bytes`, stay for followers a little behind. Only whole files are deleted.
        """
        self._check()
        kept = 0
        position = min(entryTo, len(self._log))
        while position > 0 and kept + self._log.size(position - 1) <= self._retain_bytes:
            position -= 1
            kept += self._log.size(position)
        if position > 0:
            self._bytes -= self._log.bytes_between(0, position)
            self._log.drop(position)
            self._drop_wanted = True
            if not self._pending:
                with self._stops_on_error("trim"):
                    self._drop_segments()

    # --- term and vote ----------------------------------------------------------------------------------------

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        """Not durable before the next `sync()`, and no frame may leave before that."""
        self._check()
        if (term, votedForNodeId) == self._hard:
            return
        if term < self._hard[0]:
            raise JournalMisuse(f"the term would go back from {self._hard[0]} to {term}")
        self._hard = (term, votedForNodeId)
        self._hard_dirty = True
        self._pending.append((HARD, 0, term, encode_vote(votedForNodeId)))

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._hard[0]

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self._hard[1]

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Not kept: after a restart the leader tells (hazard H19)."""

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return 1 if self._guards.commit_told else max(1, self.last_index)

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """The library's hook for lazy writes; here nothing is lazy."""

    # --- durability -------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything so far durable: one write, one fdatasync; nothing if nothing changed."""
        self._check()
        if self._cut is not None:
            self.end_message()
        if not self._pending and not self._drop_wanted:
            return
        with self._stops_on_error("sync"):
            if self._pending:
                self._note_written(self._writer.write(self._pending))
                self._pending = []
                self._hard_dirty = False
                if self._writer.offset >= self._segment_bytes:
                    self._writer.roll(self._hard, self.last_index)
            if self._drop_wanted:
                self._drop_segments()

    def _note_written(self, offsets: list[int]) -> None:
        for (kind, index, _, _), offset in zip(self._pending, offsets, strict=True):
            if kind == ENTRY:
                self._log.written(index, self._writer.sequence, offset)
        self._log.sweep()

    def _drop_segments(self) -> None:
        # Never while a truncation is unsynced: the old files may still be the only truth.
        self._drop_wanted = False
        self._writer.drop_before(self.first_index)

    def _destroy(self) -> None:
        """Close the files. What was not synced is left out."""
        self._writer.close()
        if self._failure is None:
            self._failure = JournalFailed(f"the log in {self._directory} is closed")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _stops_on_error(self, doing: str) -> StopsOnError:
        return StopsOnError(self._stop, doing)

    def _stop(self, doing: str, error: BaseException) -> None:
        if isinstance(error, JournalCorrupt):
            self._failure = error
        elif isinstance(error, OSError):
            self._failure = JournalFailed(
                f"the log in {self._directory} failed to {doing}: {error}. Nothing written since is durable and this "
                "node must stop; check the disk (space, errors in the kernel log), then start the node again"
            )
            raise self._failure from error
