"""From commands to entries and back: group commit, forwarding to the leader, deadlines.

Commands that arrive while an entry is being committed wait and leave together in the next one, so batches grow
with load and latency does not. They wait in lanes (`lanes.py`), and what an entry costs to apply is bounded. A follower
sends its commands, batched by lane, to the leader, which answers with their place in the log; the results come from the
follower's own machine when it applies that place. Every proposal ends: committed, denied (it never entered a log) or
unknown (it may have).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Any

import msgpack

from cluster.engine import Engine
from cluster.guards import Guards
from cluster.lanes import FRONT, Background, Lane, Lanes, cost_of
from cluster.leadership import Leadership
from cluster.levels import KIND as LEVEL_KIND
from cluster.options import Limits
from cluster.ports import Clock, Committed, Denied, Message, Unknown
from cluster.proposals import Done, Forward, Forwarded, Place, Proposal

PAYLOAD_KIND = b"b"
COMMAND_KINDS = (PAYLOAD_KIND, LEVEL_KIND)
"""What has commands for the machine in it."""
MAX_IN_FLIGHT = 2
"""Entries of this leader on their way at once: one travels while the next one gathers. The second leaves before the
first has arrived only with much in it (`Lanes.has_much`): an entry costs all nodes something, whatever is in it. But
nobody waits for an entry in which there is background work."""
BACKGROUND_PART = 4
"""The part of an entry's cost that background work may take: a quarter."""
MAX_FORWARDS = 4
"""Parts of one lane on their way to the leader at once."""

PARTS_KEPT = 4
"""For so many times as long as their sender waits, parts of others stay with a leader that cannot take them yet."""


class Proposer:
    def __init__(
        self,
        engine: Engine,
        leadership: Leadership,
        *,
        incarnation: int,
        retry_after: float,
        limits: Limits,
        clock: Clock,
        guards: Guards,
        stamp: Callable[[], int],
        send: Callable[[str, Message], bool],
    ) -> None:
        self._engine = engine
        self._leadership = leadership
        self._incarnation = incarnation
        self._retry_after = retry_after
        self._limits = limits
        self._clock = clock
        self._guards = guards
        self._stamp = stamp
        self._send = send
        self._lanes: Lanes[Proposal | Forwarded] = Lanes(limits)
        self._has_parts = False
        """Parts from other nodes were taken in since this node began to lead."""
        self._places: dict[int, list[Place]] = {}
        self._forwards: dict[int, Forward] = {}
        self._unanswered: Counter[Lane] = Counter()
        """How many of `_forwards` each lane has."""
        self._sequence = 0
        self._turned_away: tuple[str, float] | None = None
        """By whom, and until when nothing more is sent there: a leader that hands over takes nothing."""
        self._own_entries: deque[int] = deque()
        self._waiting_peers: set[int] = set()
        self._background = Background(clock)
        self.paused = False
        """A leader that hands over takes nothing new into its log."""

    # --- in ----------------------------------------------------------------------------------------------

    def submit(self, command: bytes, timeout: float, done: Done, lane: Lane = FRONT, cost: int = 1) -> None:
        """`cost`: about how many times as long as a small command it takes to be applied."""
        if len(command) > self._limits.command_bytes:
            done(
                Denied("too_large", f"a command of {len(command)} bytes exceeds {self._limits.command_bytes}: split it")
            )
        elif not self._lanes.has_room(lane, 1, len(command)):
            done(Denied("overloaded", "too much is waiting to be committed: try again later"))
        else:
            deadline = self._clock.now() + timeout
            self._lanes.add(Proposal(command, deadline, done, lane, cost_of(len(command), cost)))

    def append_alone(self, payload: bytes, timeout: float, done: Done) -> None:
        """An entry that is not a batch of commands, such as a new configuration. Leader only."""
        index = self._engine.append(payload)
        if index is None:
            done(Denied("not_leader", "this node does not lead: ask the leader"))
            return
        proposal = Proposal(b"", self._clock.now() + timeout, done)
        self._places.setdefault(index, []).append(Place(self._engine.term, 0, [proposal]))

    def append_level(self, command: bytes, timeout: float, done: Done) -> None:
        """An entry of its own and of a kind of its own for the command that raises the level. Leader only: at once or
        not at all, because a command that waited might come after a member that does not know the level."""
        if self.paused or not self._leadership.ready:
            done(Denied("not_ready", "this node does not lead, or not for long: ask the leader"))
            return
        self.append_alone(LEVEL_KIND + msgpack.packb([self._stamp(), [command]]), timeout, done)
        self._engine.hurry()

    def on_forward(self, peer: str, message: Message) -> None:
        """Its parts have sequence numbers from the message's on, and each is answered for itself."""
        incarnation = message["incarnation"]
        for sequence, (name, background, cost, commands) in enumerate(message["parts"], message["sequence"]):
            lane, size = Lane(name, background), sum(map(len, commands))
            if not self._engine.is_leader or self.paused:
                # Handing over is soon not leading: the sender keeps it for the next leader.
                self._reply(peer, sequence, incarnation, refused="not_leader")
            elif not self._lanes.has_room(lane, len(commands), size):
                self._reply(peer, sequence, incarnation, refused="overloaded")
            else:
                self._has_parts, part = True, (lane, cost_of(size, cost), commands, size, self._clock.now())
                self._lanes.add(Forwarded(peer, sequence, incarnation, *part))

    def _reply(self, peer: str, sequence: int, incarnation: int, **fields: Any) -> None:
        self._send(peer, {"type": "forward_reply", "sequence": sequence, "incarnation": incarnation, **fields})

    # --- onwards -----------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Move what waits: into the log when leading, to the leader otherwise."""
        if self._engine.is_leader:
            self._append_batches()
        else:
            if self._has_parts:
                self._has_parts = False
                self._give_back(-inf)
            self._forward_batches()

    def _append_batches(self) -> None:
        if not self._leadership.ready or self.paused:
            return
        applied = self._engine.applied_index
        while self._own_entries and self._own_entries[0] <= applied:
            self._own_entries.popleft()
        while self._may_append() and self._append_one():
            pass

    def _may_append(self) -> bool:
        on_their_way = len(self._own_entries)
        early = self._lanes.has_much or (self._background.under_way and self._lanes.ready(background=False))
        return not on_their_way or (on_their_way < MAX_IN_FLIGHT and early)

    def _append_one(self) -> bool:
        batch = self._next_batch()
        parts = [item for item in batch if isinstance(item, Forwarded)]
        proposals = [item for item in batch if isinstance(item, Proposal)]
        commands = [command for part in parts for command in part.commands]
        offset = len(commands)
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
        self._background.appended(index, {item.lane for item in batch})
        self._places.setdefault(index, []).append(Place(term, offset, proposals))
        offset = 0
        for part in parts:
            self._waiting_peers.add(index)
            self._reply(part.peer, part.sequence, part.incarnation, term=term, index=index, offset=offset)
            offset += part.count
        return True

    def _next_batch(self) -> list[Proposal | Forwarded]:
        """What is in the background first, if it may go: whatever else waits, it gets a share of that entry."""
        room, cost = self._limits.entry_bytes, self._lanes.entry_cost
        batch: list[Proposal | Forwarded] = []
        alone = not self._lanes.ready(background=False)
        if self._lanes.ready(background=True) and self._background.may_go(alone=alone):
            batch = self._lanes.take(room, -(-cost // BACKGROUND_PART), background=True, first=True)
            room -= sum(item.size for item in batch)
            cost = max(cost - sum(item.cost for item in batch), -(-cost // 2))
        return batch + self._lanes.take(room, cost, background=False, first=not batch)

    def _give_back(self, age: float) -> None:
        """Parts of others that have been here for so long: who sent them knows who still waits for which command."""
        before = self._clock.now() - age
        for item in self._lanes.withdraw(lambda item: isinstance(item, Forwarded) and item.came < before):
            if isinstance(item, Forwarded):
                self._reply(item.peer, item.sequence, item.incarnation, refused="not_leader")

    def _forward_batches(self) -> None:
        leader = self._engine.leader if self._takes_forwards(self._engine.leader) else None
        room, cost = self._limits.entry_bytes, self._lanes.entry_cost
        for background in (False, True):
            while leader is not None:
                taken = self._lanes.take(room, cost, background=background, first=True)
                proposals = [item for item in taken if isinstance(item, Proposal)]
                if not proposals:
                    break
                if not self._forward(leader, proposals):
                    self._requeue(proposals)
                    return

    def _takes_forwards(self, leader: str | None) -> bool:
        if self._turned_away is not None and leader == self._turned_away[0]:
            return self._engine.is_linked(leader) and self._clock.now() >= self._turned_away[1]
        return self._engine.is_linked(leader)

    def _forward(self, leader: str, proposals: list[Proposal]) -> bool:
        lane_of = attrgetter("lane")
        parts = [(lane, list(own)) for lane, own in groupby(sorted(proposals, key=lane_of), key=lane_of)]
        told = [
            (lane.name, lane.background, sum(each.cost for each in own), [each.command for each in own])
            for lane, own in parts
        ]
        first = self._sequence + 1
        if not self._send(
            leader, {"type": "forward", "sequence": first, "incarnation": self._incarnation, "parts": told}
        ):
            return False
        self._sequence += len(parts)
        for sequence, (lane, own) in enumerate(parts, first):
            self._forwards[sequence] = Forward(leader, lane, own)
            self._unanswered[lane] += 1
            if self._unanswered[lane] >= MAX_FORWARDS:
                self._lanes.hold(lane)
        return True

    def _answered(self, sequence: int) -> list[Proposal]:
        """What was sent as that part; it is on its way no longer."""
        forward = self._forwards.pop(sequence)
        self._unanswered[forward.lane] -= 1
        if not self._unanswered[forward.lane]:
            del self._unanswered[forward.lane]
        self._lanes.let_go(forward.lane)
        return forward.proposals

    def _requeue(self, proposals: list[Proposal]) -> None:
        for proposal in reversed(proposals):
            self._lanes.put_back(proposal)

    # --- back ----------------------------------------------------------------------------------------------

    def on_forward_reply(self, peer: str, message: Message) -> None:
        if message["incarnation"] != self._incarnation and self._guards.forward_incarnation:
            return
        forward = self._forwards.get(message["sequence"])
        if forward is None or forward.leader != peer:
            return
        self._answered(message["sequence"])
        refused = message.get("refused")
        if refused == "not_leader":
            self._turned_away = (peer, self._clock.now() + self._retry_after)
            self._requeue([proposal for proposal in forward.proposals if proposal.done is not None])
        elif refused is not None:
            for proposal in forward.proposals:
                proposal.end(Denied(refused, "the leader has too much to do: try again later"))
        elif message["index"] <= self._engine.applied_index:
            _end_unknown(forward.proposals, "applied", "the entry was applied before its place was known")
        else:
            place = Place(message["term"], message["offset"], forward.proposals)
            self._places.setdefault(message["index"], []).append(place)

    def applied(self, index: int, term: int, now_ms: int, results: Sequence[Any]) -> bool:
        """An entry was applied here: answer those who wait for it. True if another node waits for it, too."""
        for place in self._places.pop(index, ()):
            if place.term == term:
                for proposal, result in zip(place.proposals, results[place.offset :], strict=False):
                    proposal.end(Committed(index, now_ms, result))
                _end_unknown(place.proposals, "misplaced", "the leader told a place that is not in the entry")
            else:
                for proposal in place.proposals:
                    proposal.end(Denied("replaced", "a new leader overwrote the entry: try again"))
        self._background.applied(index)
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
            _end_unknown(self._answered(sequence), "leader_changed", "the leader changed before it answered")
        self._turned_away = None
        self._waiting_peers.clear()
        self._own_entries.clear()
        self._background.reset()

    def unlinked(self, peer: str) -> None:
        lost = [sequence for sequence, forward in self._forwards.items() if forward.leader == peer]
        for sequence in lost:
            _end_unknown(self._answered(sequence), "link_lost", "the link to the leader broke before it answered")

    def expire(self) -> None:
        """End what is past its deadline: denied if it never left this queue, unknown otherwise."""
        now = self._clock.now()
        if not self._guards.proposal_deadline:
            return
        if self._has_parts and not self._leadership.ready:
            # A leader that has yet to apply a long log would collect all that is asked meanwhile, over and over.
            self._give_back(PARTS_KEPT * self._retry_after)
        # Whoever is told may propose again at once.
        for item in self._lanes:
            if isinstance(item, Proposal) and item.deadline <= now:
                item.end(Denied("no_leader", "no leader took the command in time: try again"))
        sent = [forward.proposals for forward in self._forwards.values()]
        sent += [place.proposals for places in self._places.values() for place in places]
        for proposals in sent:
            late = [proposal for proposal in proposals if proposal.deadline <= now]
            _end_unknown(late, "deadline", "the deadline passed before a majority answered")
        # An answer that never came must not count as one on its way, or nothing more would be forwarded.
        for sequence, forward in list(self._forwards.items()):
            if all(proposal.over for proposal in forward.proposals):
                self._answered(sequence)
        self._lanes.drop_over()

    def close(self) -> None:
        for item in self._lanes.withdraw(lambda _: True):
            if isinstance(item, Proposal):
                item.end(Denied("stopping", "this node is stopping: ask another"))
        for places in self._places.values():
            for place in places:
                _end_unknown(place.proposals, "stopping", "this node stopped before the result was known")
        self._places.clear()
        for forward in self._forwards.values():
            _end_unknown(forward.proposals, "stopping", "this node stopped before the leader answered")
        self._forwards.clear()

    @property
    def queued_commands(self) -> int:
        return self._lanes.commands


def _end_unknown(proposals: Sequence[Proposal], code: str, message: str) -> None:
    for proposal in proposals:
        proposal.end(Unknown(code, message + "; repeat it only under the same request id"))
