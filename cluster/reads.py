"""Linearizable reads without writing: the read index, on the leader and from any follower.

A read may be served from applied state once this node has applied everything that was committed when the read
arrived. The leader knows that index while its lease holds; without it a quorum must confirm, after the read
arrived, that it still leads. Pending reads die with the term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.engine import Engine
from cluster.guards import Guards
from cluster.leadership import Leadership
from cluster.ports import Clock, Denied, Message

ReadDone = Callable[[int | Denied], None]
_MAX_WAITING = 100_000


@dataclass(slots=True)
class _Read:
    asked_at: float
    deadline: float
    done: ReadDone


@dataclass(slots=True)
class _Confirming:
    """A read index that the leader has noted and must still confirm."""

    term: int
    noted_at: float
    index: int
    answer: Callable[[int | None], None]


class Reads:
    def __init__(
        self,
        engine: Engine,
        leadership: Leadership,
        *,
        incarnation: int,
        retry_after: float,
        clock: Clock,
        guards: Guards,
        send: Callable[[str, Message], bool],
    ) -> None:
        self._engine = engine
        self._leadership = leadership
        self._retry_after = retry_after
        self._clock = clock
        self._guards = guards
        self._send = send
        self._waiting: list[_Read] = []
        self._confirming: list[_Confirming] = []
        self._asked: dict[int, list[_Read]] = {}
        self._ask_not_before = -1e18
        self._applying: list[tuple[int, _Read]] = []
        self._nonce = (incarnation & 0xFFFF_FFFF) << 20
        self.fresh_as_of = -1e18
        """Everything committed by then (on this node's clock) is applied here."""

    def submit(self, timeout: float, done: ReadDone) -> None:
        now = self._clock.now()
        if self.current:
            # Rule 5: the lease is checked after the read arrived.
            self.fresh_as_of = now
            done(self._engine.applied_index)
        elif len(self._waiting) >= _MAX_WAITING:
            done(Denied("overloaded", "too many reads are waiting: try again later"))
        else:
            self._waiting.append(_Read(now, now + timeout, done))

    @property
    def current(self) -> bool:
        """This node leads under its lease and has applied all that is committed: it has everything."""
        if not self._engine.is_leader or not self._guards.lease_checked_for_reads:
            return self._engine.is_leader
        return self._leadership.lease_valid() and self._engine.applied_index >= self._engine.commit_index

    # --- driven by the node ----------------------------------------------------------------------------------

    def pump(self) -> None:
        self._confirm()
        if self._waiting:
            self.ask()
        self._settle()

    def ask(self) -> bool:
        """Whether the leader is being asked for what waits here, or will be when it has answered the last request."""
        now = self._clock.now()
        if now < self._ask_not_before:
            return True
        leader = self._engine.leader
        if self._engine.is_leader and self._leadership.ready:
            reads, self._waiting = self._waiting, []
            self._note(lambda index: self._place(reads, index))
        elif leader is not None and self._engine.is_linked(leader):
            self._nonce += 1
            if self._send(leader, {"type": "read_index", "nonce": self._nonce}):
                self._asked[self._nonce], self._waiting = self._waiting, []
                # Reads that come while this one is on its way share the next request.
                self._ask_not_before = now + self._retry_after
                return True
        return False

    def _note(self, answer: Callable[[int | None], None]) -> None:
        engine = self._engine
        if self._leadership.lease_valid():
            answer(engine.commit_index)
            return
        self._confirming.append(_Confirming(engine.term, self._clock.now(), engine.commit_index, answer))
        engine.hurry()

    def _confirm(self) -> None:
        """Answer the noted reads that a quorum has confirmed; those of an older term never will be (rule 6)."""
        pending, self._confirming = self._confirming, []
        for noted in pending:
            moved_on = noted.term != self._engine.term or not self._engine.is_leader
            if moved_on and self._guards.reads_die_with_term:
                noted.answer(None)
            elif self._leadership.confirmed_since(noted.noted_at):
                noted.answer(noted.index)
            else:
                self._confirming.append(noted)

    def _place(self, reads: list[_Read], index: int | None) -> None:
        if index is None:
            self._waiting = reads + self._waiting
        else:
            self._applying += [(index, read) for read in reads]

    def _settle(self) -> None:
        """Serve what is applied far enough, end what is late. Whoever is told may ask again at once, so first of all
        nothing here counts on them any more."""
        now, applied = self._clock.now(), self._engine.applied_index
        noted = self._applying
        self._applying = [held for held in noted if held[0] > applied and not _late(held[1], now)]
        late = [read for index, read in noted if index > applied and _late(read, now)]
        late += [read for reads in (self._waiting, *self._asked.values()) for read in reads if _late(read, now)]
        if late:
            self._waiting = [read for read in self._waiting if not _late(read, now)]
            asked = {nonce: [read for read in reads if not _late(read, now)] for nonce, reads in self._asked.items()}
            self._asked = {nonce: reads for nonce, reads in asked.items() if reads}
        for index, read in noted:
            if index <= applied:
                self.fresh_as_of = max(self.fresh_as_of, read.asked_at)
                read.done(applied)
        for read in late:
            read.done(Denied("no_leader", "no leader confirmed the read in time: try again"))

    @property
    def confirming(self) -> bool:
        """A quorum must answer this leader before it may answer."""
        return bool(self._confirming)

    @property
    def pending(self) -> bool:
        return bool(self._waiting or self._confirming or self._asked or self._applying)

    # --- messages ----------------------------------------------------------------------------------------------

    def on_read_index(self, peer: str, message: Message) -> None:
        nonce = message["nonce"]

        def answer(index: int | None) -> None:
            self._send(peer, {"type": "read_index_reply", "nonce": nonce, "index": index, "term": self._engine.term})

        if self._leadership.ready:
            self._note(answer)
        else:
            answer(None)

    def on_read_index_reply(self, message: Message) -> None:
        """A fresh nonce a request: an answer to an older one finds nobody waiting."""
        reads = self._asked.pop(message["nonce"], None)
        if reads:
            self._place(reads, message["index"])
            if message["index"] is not None:
                self._ask_not_before = -1e18

    def leader_changed(self) -> None:
        for reads in self._asked.values():
            self._waiting += reads
        self._asked = {}

    def unlinked(self) -> None:
        self.leader_changed()

    def close(self) -> None:
        self.leader_changed()
        for noted in self._confirming:
            noted.answer(None)
        for read in self._waiting + [read for _, read in self._applying]:
            read.done(Denied("stopping", "this node is stopping: ask another"))
        self._waiting, self._applying, self._confirming = [], [], []


def _late(read: _Read, now: float) -> bool:
    return read.deadline <= now
