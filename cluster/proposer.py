"""From commands to entries and back: group commit, forwarding to the leader, deadlines.

Commands that arrive while an entry is being committed wait and leave together in the next one, so batches grow
with load and latency does not. A follower sends its commands, already batched, to the leader, which answers with
their place in the log; the results come from the follower's own machine when it applies that place. Every
proposal ends: committed, denied (it never entered a log) or unknown (it may have).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from cluster.engine import Engine
from cluster.guards import Guards
from cluster.leadership import Leadership
from cluster.options import Limits
from cluster.ports import Clock, Committed, Denied, Message, Outcome, Unknown

PAYLOAD_KIND = b"b"
MAX_IN_FLIGHT = 2
"""Entries of this leader on their way at once: one travels while the next one gathers."""
MAX_FORWARDS = 4
_MAX_BATCH_COMMANDS = 20_000

Done = Callable[[Outcome], None]


@dataclass(slots=True)
class _Proposal:
    command: bytes
    deadline: float
    done: Done | None
    """None once it has ended: its deadline came while it was on its way."""

    def end(self, outcome: Outcome) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(outcome)


@dataclass(slots=True)
class _Forwarded:
    """Commands that another node sent here to be proposed."""

    peer: str
    sequence: int
    incarnation: int
    commands: Sequence[bytes]


@dataclass(slots=True)
class _Place:
    """Proposals of this node that stand in one entry from `offset` on."""

    term: int
    offset: int
    proposals: list[_Proposal]


@dataclass(slots=True)
class _Forward:
    """A batch sent to the leader that has not been told its place yet."""

    leader: str
    proposals: list[_Proposal]


class Proposer:
    def __init__(
        self,
        engine: Engine,
        leadership: Leadership,
        *,
        incarnation: int,
        limits: Limits,
        clock: Clock,
        guards: Guards,
        stamp: Callable[[], int],
        send: Callable[[str, Message], bool],
    ) -> None:
        self._engine = engine
        self._leadership = leadership
        self._incarnation = incarnation
        self._limits = limits
        self._clock = clock
        self._guards = guards
        self._stamp = stamp
        self._send = send
        self._queue: deque[_Proposal] = deque()
        self._from_peers: deque[_Forwarded] = deque()
        self._queued_bytes = 0
        self._queued_commands = 0
        self._places: dict[int, list[_Place]] = {}
        self._forwards: dict[int, _Forward] = {}
        self._sequence = 0
        self._own_entries: deque[int] = deque()
        self._waiting_peers: set[int] = set()
        self.paused = False
        """A leader that hands over takes nothing new into its log."""

    # --- in ----------------------------------------------------------------------------------------------

    def submit(self, command: bytes, timeout: float, done: Done) -> None:
        if len(command) > self._limits.command_bytes:
            done(
                Denied("too_large", f"a command of {len(command)} bytes exceeds {self._limits.command_bytes}: split it")
            )
        elif not self._has_room(1, len(command)):
            done(Denied("overloaded", "too much is waiting to be committed: try again later"))
        else:
            self._queue.append(_Proposal(command, self._clock.now() + timeout, done))
            self._count(1, len(command))

    def append_alone(self, payload: bytes, timeout: float, done: Done) -> None:
        """An entry that is not a batch of commands, such as a new configuration. Leader only."""
        index = self._engine.append(payload)
        if index is None:
            done(Denied("not_leader", "this node does not lead: ask the leader"))
            return
        proposal = _Proposal(b"", self._clock.now() + timeout, done)
        self._places.setdefault(index, []).append(_Place(self._engine.term, 0, [proposal]))

    def on_forward(self, peer: str, message: Message) -> None:
        commands = message["commands"]
        size = sum(map(len, commands))
        refused = None
        if not self._engine.is_leader or self.paused:
            # Handing over is soon not leading: the sender keeps it for the next leader.
            refused = "not_leader"
        elif not self._has_room(len(commands), size):
            refused = "overloaded"
        if refused is not None:
            self._reply(peer, message["sequence"], message["incarnation"], refused=refused)
            return
        self._from_peers.append(_Forwarded(peer, message["sequence"], message["incarnation"], commands))
        self._count(len(commands), size)

    def _reply(self, peer: str, sequence: int, incarnation: int, **fields: Any) -> None:
        self._send(peer, {"type": "forward_reply", "sequence": sequence, "incarnation": incarnation, **fields})

    def _has_room(self, commands: int, size: int) -> bool:
        return (
            self._queued_commands + commands <= self._limits.queue_commands
            and self._queued_bytes + size <= self._limits.queue_bytes
        )

    def _count(self, commands: int, size: int) -> None:
        self._queued_commands += commands
        self._queued_bytes += size

    # --- onwards -----------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Move what waits: into the log when leading, to the leader otherwise."""
        if self._engine.is_leader:
            self._append_batches()
        else:
            self._refuse_peers()
            self._forward_batches()

    def _append_batches(self) -> None:
        if not self._leadership.ready or self.paused:
            return
        applied = self._engine.applied_index
        while self._own_entries and self._own_entries[0] <= applied:
            self._own_entries.popleft()
        while (self._queue or self._from_peers) and len(self._own_entries) < MAX_IN_FLIGHT:
            if not self._append_one():
                return

    def _append_one(self) -> bool:
        commands: list[bytes] = []
        forwarded: list[tuple[_Forwarded, int]] = []
        room = self._limits.entry_bytes
        while self._from_peers and room > 0:
            batch = self._from_peers.popleft()
            forwarded.append((batch, len(commands)))
            commands.extend(batch.commands)
            size = sum(map(len, batch.commands))
            room -= size
            self._count(-len(batch.commands), -size)
        offset = len(commands)
        proposals = self._take(room, first=not commands)
        commands.extend(proposal.command for proposal in proposals)
        if not commands:
            return False
        index = self._engine.append(PAYLOAD_KIND + msgpack.packb([self._stamp(), commands]))
        if index is None:
            for proposal in proposals:
                proposal.end(Denied("not_leader", "leadership was lost just now: try again"))
            return False
        term = self._engine.term
        self._own_entries.append(index)
        self._places.setdefault(index, []).append(_Place(term, offset, proposals))
        for batch, at in forwarded:
            self._waiting_peers.add(index)
            self._reply(batch.peer, batch.sequence, batch.incarnation, term=term, index=index, offset=at)
        return True

    def _take(self, room: int, *, first: bool) -> list[_Proposal]:
        """Queued proposals of this node that fit into `room`, at least one if it is the `first` of a batch."""
        taken: list[_Proposal] = []
        while self._queue and len(taken) < _MAX_BATCH_COMMANDS:
            size = len(self._queue[0].command)
            if size > room and (taken or not first):
                break
            proposal = self._queue.popleft()
            room -= size
            self._count(-1, -size)
            if proposal.done is not None:
                taken.append(proposal)
        return taken

    def _refuse_peers(self) -> None:
        while self._from_peers:
            batch = self._from_peers.popleft()
            self._count(-len(batch.commands), -sum(map(len, batch.commands)))
            self._reply(batch.peer, batch.sequence, batch.incarnation, refused="not_leader")

    def _forward_batches(self) -> None:
        leader = self._engine.leader if self._engine.is_linked(self._engine.leader) else None
        while leader is not None and self._queue and len(self._forwards) < MAX_FORWARDS:
            proposals = self._take(self._limits.entry_bytes, first=True)
            if not proposals:
                return
            self._sequence += 1
            sent = self._send(
                leader,
                {
                    "type": "forward",
                    "sequence": self._sequence,
                    "incarnation": self._incarnation,
                    "commands": [proposal.command for proposal in proposals],
                },
            )
            if not sent:
                self._requeue(proposals)
                return
            self._forwards[self._sequence] = _Forward(leader, proposals)

    def _requeue(self, proposals: list[_Proposal]) -> None:
        for proposal in reversed(proposals):
            self._queue.appendleft(proposal)
            self._count(1, len(proposal.command))

    # --- back ----------------------------------------------------------------------------------------------

    def on_forward_reply(self, peer: str, message: Message) -> None:
        if message["incarnation"] != self._incarnation and self._guards.forward_incarnation:
            return
        forward = self._forwards.get(message["sequence"])
        if forward is None or forward.leader != peer:
            return
        del self._forwards[message["sequence"]]
        refused = message.get("refused")
        if refused == "not_leader":
            self._requeue([proposal for proposal in forward.proposals if proposal.done is not None])
        elif refused is not None:
            for proposal in forward.proposals:
                proposal.end(Denied(refused, "the leader has too much to do: try again later"))
        elif message["index"] <= self._engine.applied_index:
            _end_unknown(forward.proposals, "applied", "the entry was applied before its place was known")
        else:
            place = _Place(message["term"], message["offset"], forward.proposals)
            self._places.setdefault(message["index"], []).append(place)

    def applied(self, index: int, term: int, now_ms: int, results: Sequence[Any]) -> bool:
        """An entry was applied here: answer those who wait for it. True if another node waits for it, too."""
        for place in self._places.pop(index, ()):
            if place.term == term:
                for proposal, result in zip(place.proposals, results[place.offset :], strict=False):
                    proposal.end(Committed(index, now_ms, result))
            else:
                for proposal in place.proposals:
                    proposal.end(Denied("replaced", "a new leader overwrote the entry: try again"))
        waiting = index in self._waiting_peers
        self._waiting_peers.discard(index)
        return waiting

    def restored(self, index: int) -> None:
        """A snapshot took the place of entries up to `index`: what became of them is not known here."""
        for held in [held for held in self._places if held <= index]:
            for place in self._places.pop(held):
                _end_unknown(
                    place.proposals, "snapshot", "the entry is behind a snapshot: its result is not known here"
                )

    def leader_changed(self) -> None:
        """Batches that the old leader never placed may or may not be in its log. The new one may have some already."""
        lost = [sequence for sequence, forward in self._forwards.items() if forward.leader != self._engine.leader]
        for sequence in lost:
            proposals = self._forwards.pop(sequence).proposals
            _end_unknown(proposals, "leader_changed", "the leader changed before it answered")
        self._waiting_peers.clear()
        self._own_entries.clear()

    def unlinked(self, peer: str) -> None:
        lost = [sequence for sequence, forward in self._forwards.items() if forward.leader == peer]
        for sequence in lost:
            proposals = self._forwards.pop(sequence).proposals
            _end_unknown(proposals, "link_lost", "the link to the leader broke before it answered")

    def expire(self) -> None:
        """End what is past its deadline: denied if it never left this queue, unknown otherwise."""
        now = self._clock.now()
        if not self._guards.proposal_deadline:
            return
        # Whoever is told may propose again at once, so the queue is looked at as it is now.
        for proposal in list(self._queue):
            if proposal.done is not None and proposal.deadline <= now:
                proposal.end(Denied("no_leader", "no leader took the command in time: try again"))
        sent = [forward.proposals for forward in self._forwards.values()]
        sent += [place.proposals for places in self._places.values() for place in places]
        for proposals in sent:
            late = [proposal for proposal in proposals if proposal.deadline <= now]
            _end_unknown(late, "deadline", "the deadline passed before a majority answered")
        # An answer that never came must not count as one on its way, or nothing more would be forwarded.
        self._forwards = {
            sequence: forward
            for sequence, forward in self._forwards.items()
            if any(proposal.done is not None for proposal in forward.proposals)
        }
        while self._queue and self._queue[0].done is None:
            self._count(-1, -len(self._queue.popleft().command))

    def close(self) -> None:
        for proposal in self._queue:
            proposal.end(Denied("stopping", "this node is stopping: ask another"))
        self._queue.clear()
        self._queued_bytes = self._queued_commands = 0
        for places in self._places.values():
            for place in places:
                _end_unknown(place.proposals, "stopping", "this node stopped before the result was known")
        self._places.clear()
        for forward in self._forwards.values():
            _end_unknown(forward.proposals, "stopping", "this node stopped before the leader answered")
        self._forwards.clear()

    @property
    def queued_commands(self) -> int:
        return self._queued_commands

    @property
    def in_flight(self) -> bool:
        return bool(self._places or self._forwards or self._queue or self._from_peers)


def _end_unknown(proposals: Sequence[_Proposal], code: str, message: str) -> None:
    for proposal in proposals:
        proposal.end(Unknown(code, message + "; repeat it only under the same request id"))
