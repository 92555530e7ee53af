"""The Raft engine: the only module that touches pysyncobj, its subclass and its private names.

`Engine` shows the library as a plain object: messages in, messages out, entries applied in order. What is
broken in the library is not mended here but around it: messages are filtered in `cluster.filters`, elections
gated in `cluster.elections`, storage replaced by `cluster.journal` and `cluster.compaction`. `tests/cluster/
test_engine_pins.py` checks that every private name used here still exists in the pinned version.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import pysyncobj.syncobj as library
from pysyncobj.config import SERIALIZER_STATE, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from cluster.guards import Guards
from cluster.journal import Journal
from cluster.options import Limits, Timing
from cluster.ports import Clock, Entry, Message, NodeTooOld, Random, SnapshotPort

_REGULAR, _NO_OP = 0, 1
_FOLLOWER, _LEADER = 0, 2
_NEVER = 1e12
_SNAPSHOTS = {"busy": SERIALIZER_STATE.SERIALIZING, "done": SERIALIZER_STATE.SUCCESS, "failed": SERIALIZER_STATE.FAILED}


class Owner(Protocol):
    """What the engine calls back."""

    def send(self, peer: str, message: Message) -> bool: ...

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        """`payload` is None for the no-op that opens a term."""

    def fatal(self, reason: str) -> None:
        """Stop the node now; must not return in production."""


class _Peer(Node):
    """A library node whose hash does not depend on the process, so that sets iterate alike everywhere."""

    def __hash__(self) -> int:
        return zlib.crc32(self.id.encode())

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Node) and bool(self.id == other.id))


class _Serializer:
    """The library's serializer, by its own method names, in front of our snapshots."""

    def __init__(self, snapshots: SnapshotPort) -> None:
        self._snapshots = snapshots

    def checkSerializing(self) -> tuple[int, int | None]:
        state, snapshot_id = self._snapshots.finished()
        return (SERIALIZER_STATE.NOT_SERIALIZING, None) if state == "idle" else (_SNAPSHOTS[state], snapshot_id)

    def serialize(self, data: tuple[Any, Entry, Entry, Any], snapshot_id: int) -> None:
        self._snapshots.begin(data[1], data[2], snapshot_id)

    def deserialize(self) -> tuple[None, Entry, Entry, None]:
        last, prev = self._snapshots.load()
        return None, last, prev, None

    def getTransmissionData(self, node: Node) -> tuple[bytes, bool, bool] | None:
        return self._snapshots.next_chunk(node.id)

    def setTransmissionData(self, data: tuple[bytes, bool, bool] | None) -> bool:
        return self._snapshots.accept(data)

    def cancelTransmisstion(self, node: Node) -> None:
        self._snapshots.cancel(node.id)


class _Shim(Transport):
    """The library's transport: hands every message to the owner."""

    def __init__(self, core: _Core, self_node: Node, other_nodes: Sequence[Node]) -> None:
        super().__init__(core, self_node, other_nodes)
        self._engine = core._engine

    def send(self, node: Node, message: Message) -> bool:
        return self._engine._send(node, message)


class _NoPoller:
    def poll(self, timeout: float) -> None:
        """The library polls sockets in its tick; ours are not its."""


class _Core(library.SyncObj):
    """The library's class with the methods replaced that cannot be guarded from outside."""

    def __init__(self, engine: Engine, voters: Sequence[str], conf: SyncObjConf) -> None:
        self._engine = engine
        others = [_Peer(peer) for peer in sorted(voters) if peer != engine.node_id]
        super().__init__(_Peer(engine.node_id), others, conf, nodeClass=_Peer, transportClass=_Shim)
        self._poller = _NoPoller()

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        self._engine._apply(self._SyncObj__raftLastApplied + 1, command)

    def _SyncObj__applyLogEntries(self) -> bool:
        """Not in the tick, where others would wait for it: the owner says when (`Engine.apply`)."""
        return False

    def _checkCommandsToApply(self) -> None:
        """Nothing is in the library's queue, ever (`Engine.append`), and finding that out takes long."""

    def _SyncObj__getCurrentLogIndex(self) -> int:
        return self._engine.journal.last_index

    def _SyncObj__getCurrentLogTerm(self) -> int:
        return self._engine.journal.last_term

    def _SyncObj__generateRaftTimeout(self) -> float:
        return self._engine.random_timeout()

    def _SyncObj__connectedToAnyone(self) -> bool:
        """The library's last question before it campaigns. The answer does not depend on when its clock is read."""
        return self._engine._may_campaign and bool(super()._SyncObj__connectedToAnyone())

    def _SyncObj__getEntries(
        self, fromIDx: int | None, count: int | None = None, maxSizeBytes: int | None = None
    ) -> list[Entry]:
        """Like the library's, but bounds are ours, on what is sent and on what is applied.

        Elsewhere it looks at commands only of the pair that a snapshot ends with; of any other entry it wants the term,
        and of what follows it whether there is something. So nothing is read from a file for that.
        """
        journal, limits = self._engine.journal, self._engine._limits
        if fromIDx is None or fromIDx < journal.first_index:
            return []
        start = fromIDx - journal.first_index
        if self._engine._applying or maxSizeBytes is not None:
            return journal.within(start, count, limits.append_bytes if maxSizeBytes else limits.apply_bytes)
        return journal[start : start + 2] if count == 2 else journal.outlines(start, count or 2)


_active: list[Any] = [None]


def _monotonic() -> Any:
    """The library's clock: that of the engine whose code is running."""
    return _active[0].clock.now()


class Engine:
    """One node's Raft, driven from outside: `deliver`, `append`, `tick`, in the order `cluster.node` gives."""

    def __init__(
        self,
        node_id: str,
        voters: Sequence[str],
        *,
        timing: Timing,
        limits: Limits,
        journal: Journal,
        snapshots: SnapshotPort,
        owner: Owner,
        clock: Clock,
        random: Random,
        guards: Guards,
    ) -> None:
        self.node_id = node_id
        self.journal = journal
        self.clock = clock
        self._timing = timing
        self._limits = limits
        self._owner = owner
        self._random = random
        self._guards = guards
        self._paced: set[str] = set()
        self._linked: set[str] = set()
        self._may_campaign = self._applying = False
        self._enter()
        library.monotonicTime = _monotonic
        original, library.createJournal = library.createJournal, lambda _path: journal
        try:
            self._core = _Core(self, voters, self._conf())
        finally:
            library.createJournal = original
        self._core._SyncObj__serializer = _Serializer(snapshots)
        # One that is set keeps the library from collecting its own fields for a dump; it is never called.
        self._core.conf.serializer = _Serializer

    def _conf(self) -> SyncObjConf:
        return SyncObjConf(
            autoTick=False,
            commandsWaitLeader=False,
            appendEntriesUseBatch=True,
            appendEntriesPeriod=self._timing.heartbeat,
            # The chunked path of the library breaks entries (H14): nothing ever reaches this size.
            appendEntriesBatchSizeBytes=2**62 if self._guards.whole_entries else self._limits.append_bytes,
            raftMinTimeout=self._timing.election_min,
            raftMaxTimeout=self._timing.election_max,
            leaderFallbackTimeout=self._timing.quorum_loss if self._guards.check_quorum else _NEVER,
            logCompactionMinEntries=2**62,
            logCompactionMinTime=_NEVER,
            dynamicMembershipChange=False,
            useFork=False,
            pollerType="select",
            connectionTimeout=self._timing.election_max,
        )

    def load(self, has_snapshot: bool) -> None:
        """Restore from our own snapshot, before anything is received (H8)."""
        self._enter()
        if has_snapshot:
            self._core._SyncObj__loadDumpFile(clearJournal=False)
        self._core._SyncObj__needLoadDumpFile = False
        self.journal.end_message()

    # --- what it knows ---------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return int(self._core._SyncObj__raftCurrentTerm)

    @property
    def leader(self) -> str | None:
        node = self._core._SyncObj__raftLeader
        return None if node is None else str(node.id)

    @property
    def is_leader(self) -> bool:
        return bool(self._core._SyncObj__raftState == _LEADER)

    @property
    def commit_index(self) -> int:
        """Never less than what is applied: the library lets its own figure drop while it truncates."""
        return max(int(self._core._SyncObj__raftCommitIndex), self.applied_index)

    @property
    def applied_index(self) -> int:
        return int(self._core._SyncObj__raftLastApplied)

    @property
    def noop_index(self) -> int | None:
        """The index of this term's first entry, while leading."""
        return self._core._SyncObj__noopIDx if self.is_leader else None

    def match_index(self, peer: str) -> int:
        return int(self._core._SyncObj__raftMatchIndex.get(_Peer(peer), 0))

    def next_index(self, peer: str) -> int:
        return int(self._core._SyncObj__raftNextIndex.get(_Peer(peer), 0))

    def set_next_index(self, peer: str, index: int) -> None:
        if _Peer(peer) in self._core._SyncObj__raftNextIndex:
            self._core._SyncObj__raftNextIndex[_Peer(peer)] = index

    def knows(self, peer: str) -> bool:
        node = _Peer(peer)
        return node in self._core._SyncObj__otherNodes or node in self._core._SyncObj__readonlyNodes

    @property
    def election_deadline(self) -> float:
        return float(self._core._SyncObj__raftElectionDeadline)

    @election_deadline.setter
    def election_deadline(self, value: float) -> None:
        self._core._SyncObj__raftElectionDeadline = value

    def random_timeout(self) -> float:
        low, high = self._timing.election_min, self._timing.election_max
        return low + (high - low) * self._random.random()

    # --- what it is told -------------------------------------------------------------------------------------

    def deliver(self, peer: str, message: Message) -> None:
        self._enter()
        self._core._SyncObj__transport._onMessageReceived(_Peer(peer), message)
        self.journal.end_message()

    def tick(self, may_campaign: bool = False) -> None:
        self._enter()
        self._may_campaign = may_campaign
        core = self._core
        # What a snapshot holds is committed. The library does not conclude that: leading, it would count up to there
        # from where it believes to be, one index after the other, and after a restart that is from the very first.
        core._SyncObj__raftCommitIndex = max(core._SyncObj__raftCommitIndex, core._SyncObj__raftLastApplied)
        core.doTick(0)

    def apply(self) -> None:
        """Apply a bounded piece of what is committed."""
        self._enter()
        self._applying = True
        try:
            library.SyncObj._SyncObj__applyLogEntries(self._core)
        finally:
            self._applying = False

    def append(self, payload: bytes) -> int | None:
        """Add one entry to the leader's log; its index, or None when not leading. Not durable yet."""
        if not self.is_leader:
            return None
        index = self.journal.last_index + 1
        # Not by the library's queue: it gives up after a heartbeat, and after a stall takes nothing out at all.
        self._core._SyncObj__raftLog.add(bytes((_REGULAR,)) + payload, index, self.term)
        return index

    def hurry(self) -> None:
        """Send appends at the next tick instead of at the next heartbeat."""
        self._core._SyncObj__newAppendEntriesTime = 0

    def compact(self) -> None:
        self._core.forceLogCompaction()

    def linked(self, peer: str) -> None:
        self._linked.add(peer)
        self._paced.discard(peer)
        self._core._SyncObj__connectedNodes.add(_Peer(peer))

    def unlinked(self, peer: str) -> None:
        self._linked.discard(peer)
        self._paced.discard(peer)
        self._core._SyncObj__connectedNodes.discard(_Peer(peer))

    def is_linked(self, peer: str | None) -> bool:
        return peer in self._linked

    def pace(self, peer: str) -> None:
        """Send this peer nothing more for now: its link is full (H12)."""
        if peer in self._linked and peer not in self._paced:
            self._paced.add(peer)
            self._core._SyncObj__connectedNodes.discard(_Peer(peer))

    def unpace(self, peer: str) -> None:
        if peer in self._paced:
            self.linked(peer)

    @property
    def paced(self) -> frozenset[str]:
        return frozenset(self._paced)

    def heard(self, peer: str) -> None:
        """Count a sign of life for check-quorum that is not an acknowledgement."""
        self._core._SyncObj__lastResponseTime[_Peer(peer)] = self.clock.now()

    def step_down(self, term: int) -> None:
        """Follow `term`; in the same term, only give up leading."""
        self._enter()
        if term > self.term:
            self._core._SyncObj__setCurrentTerm(term, None)
        self._core._SyncObj__setState(_FOLLOWER)
        self._core._SyncObj__raftLeader = None
        self.election_deadline = self.clock.now() + self.random_timeout()

    def campaign_at_once(self) -> None:
        """Start an election at the next tick: a majority already agreed, or the leader asked for it."""
        self._core._SyncObj__transferInProgress = False
        self.election_deadline = 0.0

    def set_members(self, voters: frozenset[str], learners: frozenset[str]) -> None:
        """Replace who votes and who only listens. Progress of those who stay is kept."""
        core = self._core
        others = {_Peer(peer) for peer in sorted(voters - {self.node_id})}
        readers = {_Peer(peer) for peer in sorted(learners - {self.node_id})}
        for node in (core._SyncObj__otherNodes | core._SyncObj__readonlyNodes) - (others | readers):
            core._SyncObj__raftNextIndex.pop(node, None)
            core._SyncObj__raftMatchIndex.pop(node, None)
        for node in sorted(others | readers, key=lambda peer: str(peer.id)):
            if node not in core._SyncObj__raftMatchIndex:
                core._SyncObj__raftNextIndex[node] = self.journal.last_index + 1
                core._SyncObj__raftMatchIndex[node] = 0
            core._SyncObj__lastResponseTime.setdefault(node, self.clock.now())
        core._SyncObj__otherNodes = others
        core._SyncObj__readonlyNodes = readers

    # --- from the library ------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Every call into the library passes here: its clock is a module global, shared by all engines."""
        _active[0] = self

    def _send(self, node: Node, message: Message) -> bool:
        return self._owner.send(str(node.id), message)

    def _apply(self, index: int, command: bytes) -> None:
        kind = command[0]
        if kind not in (_REGULAR, _NO_OP):
            if self._guards.own_payloads_only:
                self._owner.fatal(f"entry {index} has kind {kind}, which this program never writes (H13)")
            return
        term = self.journal.term_at(index) or 0
        try:
            self._owner.apply(index, term, None if kind == _NO_OP else command[1:])
        except NodeTooOld as error:
            self._owner.fatal(f"entry {index} cannot be applied: {error}")
        except Exception as error:
            if not self._guards.apply_stops:
                raise
            self._owner.fatal(f"applying entry {index} failed: {error!r}; this is a bug, and going on would diverge")
