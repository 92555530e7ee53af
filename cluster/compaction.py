"""Snapshots in use: when to take one, how it reaches a follower that is too far behind, how one is installed.

The files themselves are `cluster.snapshots`; the moment of switching over belongs to the library, which calls
these methods in the place of its own serializer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cluster.clusterclock import ClusterClock
from cluster.guards import Guards
from cluster.membership import Membership
from cluster.options import Limits
from cluster.ports import Committed, Denied, Entry, NodeTooOld, Outcome, StateMachine, Unknown
from cluster.snapshots import SnapshotCorrupt, SnapshotMeta, SnapshotReader, SnapshotStore

TAKING_PART = 10
"""Snapshots take at most a tenth as long as applying what they save others to apply."""


class _Sending:
    def __init__(self, reader: SnapshotReader) -> None:
        self.reader = reader
        self.offset = 0
        self.sent_offset = 0


class Compaction:
    def __init__(
        self,
        store: SnapshotStore,
        machine: StateMachine,
        cluster_clock: ClusterClock,
        membership: Membership,
        *,
        limits: Limits,
        guards: Guards,
        now: Callable[[], float],
        paced: Callable[[str], bool],
        restored: Callable[[int], None],
        fatal: Callable[[str], None],
    ) -> None:
        self._store = store
        self._machine = machine
        self._clock = cluster_clock
        self._membership = membership
        self._limits = limits
        self._guards = guards
        self._now = now
        self._is_paced = paced
        self._restored = restored
        self._fatal = fatal
        self._state = "idle"
        self._snapshot_id = 0
        self._sending: dict[str, _Sending] = {}
        self._expected: tuple[str, int, int] = ("", 0, 0)
        self.delivered: dict[str, int] = {}
        """Peers whose snapshot has just been sent to its end, and the index it brings them to."""
        self._wanted: list[tuple[float, Callable[[Outcome], None]]] = []
        self.last_error: str | None = None
        self.last_bytes = 0
        self.last_index = 0
        """The index the newest snapshot covers."""
        self._applying_s = 0.0
        """What applying took since the last one was begun."""
        self._taking_s = self._began = 0.0
        """How long the last one took, and when it was begun."""

    # --- taking ----------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self._state == "busy"

    def due(self, log_bytes: int, log_entries: int) -> bool:
        """The log has outgrown the snapshot: writing it costs no more than what it saves. In bytes, or in the time
        that a cluster of which all nodes start again needs until it serves: it must apply all of it."""
        budget, replay_s = max(self._limits.log_bytes, self.last_bytes), self._limits.replay_ms / 1000
        long = self._applying_s > max(replay_s, TAKING_PART * self._taking_s)
        return not self.busy and (log_bytes > budget or log_entries > self._limits.log_entries or long)

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> Sequence[Any]:
        """By the machine. What that takes is what a snapshot would save."""
        began = self._now()
        results = self._machine.apply(index, now_ms, commands)
        self._applying_s += self._now() - began
        return results

    def finished(self) -> tuple[str, int]:
        state = self._state
        if state in ("done", "failed"):
            self._state = "idle"
        return state, self._snapshot_id

    def begin(self, last: Entry, prev: Entry, snapshot_id: int) -> None:
        if self._store.busy or not self._membership.at(last[1]):
            # A node that is joining has not reached the entry that names the members: whoever got its snapshot would
            # know of none, and hear nobody any more.
            return
        meta = SnapshotMeta(
            last=last, prev=prev, now_ms=self._clock.applied_ms, config=self._membership.encoded_at(last[1])
        )
        self._state, self._snapshot_id = "busy", snapshot_id
        self._applying_s, self._began = 0.0, self._now()
        self._store.take(meta, self._machine.freeze(), self._taken)

    def _taken(self, meta: SnapshotMeta | None, error: BaseException | None) -> None:
        self.last_error = None if error is None else f"snapshot failed: {error}"
        if self._state != "busy":
            return
        self._state = "failed" if meta is None else "done"
        self._taking_s = self._now() - self._began
        if meta is not None:
            self._note_size()

    def _note_size(self) -> None:
        reader = self._store.reader()
        if reader is not None:
            self.last_bytes, self.last_index = reader.size, reader.meta.last[1]
            reader.close()

    def want(self, deadline: float, done: Callable[[Outcome], None]) -> None:
        """Someone asked for a snapshot and waits until one is durable."""
        self._wanted.append((deadline, done))

    def settle(self, now: float) -> None:
        wanted, self._wanted = self._wanted, []
        for deadline, done in wanted:
            if self.busy and now < deadline:
                self._wanted.append((deadline, done))
            elif self.busy:
                done(Unknown("deadline", "the snapshot is still being written; it goes on in the background"))
            elif self.last_error is not None:
                done(Denied("snapshot_failed", self.last_error))
            else:
                done(Committed(self.last_index, self._clock.applied_ms, None))

    # --- loading ---------------------------------------------------------------------------------------------

    def load(self) -> tuple[Entry, Entry]:
        """Called by the library inside a bare `except`: a failure must end the node here (H2)."""
        try:
            meta = self._store.load(self._machine.restore)
            self._clock.restore(meta.now_ms, meta.term)
            self._membership.restore(meta.last[1], meta.config)
            self._restored(meta.last[1])
            self._note_size()
        except (SnapshotCorrupt, OSError) as error:
            if self._guards.snapshot_load_stops:
                self._fatal(f"the snapshot cannot be loaded: {error}")
            raise
        except NodeTooOld as error:
            self._fatal(f"the snapshot cannot be loaded: {error}")
            raise
        except Exception as error:
            self._fatal(f"restoring the snapshot failed: {error!r}; this is a bug")
            raise
        return meta.last, meta.prev

    # --- sending ---------------------------------------------------------------------------------------------

    def next_chunk(self, peer: str) -> tuple[bytes, bool, bool] | None:
        sending = self._sending.get(peer)
        if sending is None:
            reader = self._store.reader()
            if reader is None:
                return None
            sending = self._sending[peer] = _Sending(reader)
        reader = sending.reader
        chunk = reader.read(sending.offset, self._limits.snapshot_chunk_bytes)
        sending.sent_offset = sending.offset
        sending.offset += len(chunk)
        is_last = sending.offset >= reader.size
        if is_last:
            self.delivered[peer] = reader.meta.last[1]
        return chunk, sending.sent_offset == 0, is_last

    def position(self, peer: str) -> tuple[int, int]:
        """(index, offset) of the chunk just taken for `peer`; the end of a snapshot closes it."""
        sending = self._sending.get(peer)
        if sending is None:
            return 0, 0
        where = sending.reader.meta.last[1], sending.sent_offset
        if sending.offset >= sending.reader.size:
            self._close(peer)
        return where

    def cancel(self, peer: str) -> None:
        """The library cancels whenever a peer is not connected; one that is only paced goes on later."""
        if peer in self._sending and not self._is_paced(peer):
            self._close(peer)

    def _close(self, peer: str) -> None:
        self._sending.pop(peer).reader.close()

    # --- receiving -------------------------------------------------------------------------------------------

    def expect(self, peer: str, index: int, offset: int) -> None:
        self._expected = (peer, index, offset)

    def accept(self, chunk: tuple[bytes, bool, bool] | None) -> bool:
        """True when the snapshot is whole, verified, durable and in place; the library then loads it."""
        if chunk is None:
            return False
        peer, index, offset = self._expected
        whole = self._store.receive(offset, chunk[0], is_last=chunk[2], source=peer, index=index)
        self.last_error = self._store.last_error
        return whole

    def close(self) -> None:
        for peer in list(self._sending):
            self._close(peer)
