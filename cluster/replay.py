"""Reading a log back at start: which bytes count, what they say, and how they join the snapshot.

The judgement is strict. Only a tail that provably never was synced is cut; any other damage or gap refuses to start,
because a node that forgot what it acknowledged can elect a leader that lacks it (hazards H8, H9).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from cluster.entries import Entries
from cluster.ports import Disk, Entry
from cluster.records import ENTRY, HARD, RESET, TRUNCATE, Record
from cluster.segments import (
    ADVICE,
    ClosedSegment,
    HardState,
    JournalCorrupt,
    JournalHole,
    ReadSegment,
    SegmentWriter,
    decode_vote,
    read_segment,
    segment_opening,
    segment_path,
    segment_sequences,
)


@dataclass(frozen=True, slots=True)
class JournalGuards:
    """Each protection of the log, so that tests can show what happens without it. Production never changes one."""

    soft_truncation: bool = True
    align_snapshot: bool = True
    fsync: bool = True
    detect_corruption: bool = True
    detect_hole: bool = True
    commit_told: bool = True


@dataclass(slots=True)
class Replayed:
    """What the files say."""

    entries: Entries
    hard: HardState = (0, None)
    closed: list[ClosedSegment] = field(default_factory=list)


def replay(
    disk: Disk,
    directory: str,
    identity: bytes,
    snapshot: tuple[Entry, Entry] | None,
    writer: SegmentWriter,
    guards: JournalGuards,
    memory_bytes: int,
) -> Replayed:
    """Read every segment, repair what may be repaired, and leave `writer` behind the last good record."""
    read = [read_segment(disk, directory, number, identity) for number in segment_sequences(disk, directory)]
    segments = [segment for segment, _ in read]
    _check_sequence(segments, guards)
    if segments and _never_used(segments, identity):
        disk.unlink(segments[-1].path)
        disk.sync_directory(directory)
        segments.pop()
        read.pop()
    if not segments:
        if snapshot is not None and guards.detect_hole:
            raise JournalHole(f"{directory} has a snapshot but no log: term and vote are forgotten. {ADVICE}")
        writer.create(1, (0, None))
        return Replayed(Entries(writer, memory_bytes))
    _check_damage(segments, guards)
    state = Replayed(Entries(writer, memory_bytes))
    for segment, hard in read:
        _apply_segment(state, segment, hard)
        state.closed.append(ClosedSegment(segment.sequence, state.entries.last))
    state.closed.pop()
    if not state.entries and snapshot is None and segments[0].sequence > 1 and guards.detect_hole:
        raise JournalHole(f"trimmed log but no snapshot: the files before {segments[0].path} are gone. {ADVICE}")
    _resume(disk, directory, segments, writer)
    return state


def _check_sequence(segments: list[ReadSegment], guards: JournalGuards) -> None:
    if not guards.detect_hole:
        return
    for before, after in pairwise(segments):
        if after.sequence != before.sequence + 1:
            raise JournalHole(
                f"the log goes from {before.path} to {after.path}: the files between them are missing. {ADVICE}"
            )


def _never_used(segments: list[ReadSegment], identity: bytes) -> bool:
    """Is the last file one whose creation a crash interrupted?

    Its predecessor is sealed only once it is durable. The very first one has none, but no record behind its opening.
    """
    last = segments[-1]
    if last.opened or not last.torn:
        return False
    if len(segments) > 1:
        return not segments[-2].sealed
    return last.sequence == 1 and last.size <= len(segment_opening(identity, 1, 1, (0, None)))


def _check_damage(segments: list[ReadSegment], guards: JournalGuards) -> None:
    last = len(segments) - 1
    for position, segment in enumerate(segments):
        # A crash inside a roll leaves a blank last segment and, before it, one whose seal may be missing or torn.
        at_tail = position == last or (position == last - 1 and segments[last].blank)
        if segment.damage is not None:
            if not (at_tail and segment.opened and segment.torn) and guards.detect_corruption:
                raise _corrupt(segment)
        elif not segment.sealed and not at_tail:
            raise JournalCorrupt(f"{segment.path} ends at offset {segment.end} without its seal. {ADVICE}")
    if segments[last].sealed and guards.detect_hole:
        missing = segments[last].sequence + 1
        raise JournalHole(f"{segments[last].path} is sealed but segment {missing} after it is missing. {ADVICE}")


def _corrupt(segment: ReadSegment) -> JournalCorrupt:
    damage = segment.damage
    offset, reason = (damage.offset, damage.reason) if damage else (segment.end, "damaged")
    proof = "" if segment.later is None else f", and the record at {segment.later} shows that it had been synced"
    return JournalCorrupt(f"{segment.path} is damaged at offset {offset}: {reason}{proof}. {ADVICE}")


def _apply_segment(state: Replayed, segment: ReadSegment, hard: HardState) -> None:
    _apply_hard(state, segment, hard)
    for record in segment.records:
        if record.kind == ENTRY:
            entries = state.entries
            if entries and record.index != entries.last + 1:
                raise JournalHole(
                    f"{segment.path}: entry {record.index} before offset {record.end} follows entry "
                    f"{entries.last}: the entries between them are missing. {ADVICE}"
                )
            entries.append_written(record, segment.sequence)
        elif record.kind == HARD:
            _apply_hard(state, segment, (record.term, decode_vote(record.body)))
        elif record.kind in (TRUNCATE, RESET):
            _apply_truncation(state, segment, record)


def _apply_hard(state: Replayed, segment: ReadSegment, hard: HardState) -> None:
    if hard[0] < state.hard[0]:
        raise JournalCorrupt(f"{segment.path}: the term goes back from {state.hard[0]} to {hard[0]}. {ADVICE}")
    state.hard = hard


def _apply_truncation(state: Replayed, segment: ReadSegment, record: Record) -> None:
    entries = state.entries
    index = 1 if record.kind == RESET else record.index
    if entries:
        if index > entries.last + 1:
            raise JournalHole(f"{segment.path}: entries before {index} are missing. {ADVICE}")
        entries.cut(max(0, index - entries.first))


def _resume(disk: Disk, directory: str, segments: list[ReadSegment], writer: SegmentWriter) -> None:
    """Cut the torn tail, finish an interrupted roll, and point the writer behind the last record."""
    newest = max((s.records[-1].epoch for s in segments if s.records), default=0)
    # Two openings and a seal may have used epochs since; only growth inside one file matters.
    writer.epoch = newest + len(segments) + 2
    if len(segments) > 1:
        before = segments[-2]
        file = disk.open(segment_path(directory, before.sequence))
        if before.sealed:
            # By a killed process, perhaps in the page cache only: once the last file is in use it must not get lost.
            writer.sync(file)
        else:
            if file.size() > before.end:
                file.truncate(before.end)
            writer.seal(file, before.sequence, before.end)
        file.close()
    writer.resume(segments[-1].sequence, segments[-1].end)
    # Names of a killed process may not be durable either.
    disk.sync_directory(directory)


def join_snapshot(entries: Entries, snapshot: tuple[Entry, Entry] | None, where: str) -> Entries | None:
    """The log as it continues the snapshot `(prev, last)`; None if none of it does and the snapshot replaces it."""
    first = entries.first
    if snapshot is None:
        if entries and first > 1:
            raise JournalHole(
                f"trimmed log but no snapshot: {where} starts at entry {first} and the snapshot before it is "
                f"missing. {ADVICE}"
            )
        return entries
    prev, last = snapshot
    if entries.last < last[1]:
        return None
    if first > last[1] + 1:
        raise JournalHole(
            f"{where} starts at entry {first} but the snapshot ends at {last[1]}: "
            f"what lies between is missing. {ADVICE}"
        )
    for kept in (last, prev):
        position = kept[1] - first
        if position < 0 or entries[position] == kept:
            continue
        if entries.term(position) != kept[2] and kept is last:
            return None
        raise JournalCorrupt(
            f"{where}: entry {kept[1]} of term {entries.term(position)} is not the one the snapshot has. {ADVICE}"
        )
    behind = entries.cut(last[1] - first + 1)
    entries.cut(0)
    for kept in snapshot:
        entries.append(kept)
    entries.extend(behind, 0)
    return entries
