"""The journal against a plain list, under random messages, syncs, snapshots and crashes.

The model keeps every state that the records written since the last sync pass through, one by one: after a power cut
the journal must be in one of them, so that nothing synced is lost and what was not synced goes as a suffix only.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.ports import Entry
from tests.sim.disk import SimCrash, SimDisk
from tests.storage.support import entry, open_journal

State = tuple[tuple[Entry, ...], int, str | None]


def joined(entries: tuple[Entry, ...], snapshot: tuple[Entry, Entry] | None) -> tuple[Entry, ...]:
    if snapshot is None:
        return entries
    behind = [position for position, found in enumerate(entries) if found == snapshot[1]]
    return (*snapshot, *entries[behind[0] + 1 :]) if behind else snapshot


class JournalMachine(RuleBasedStateMachine):
    @initialize(retain=st.sampled_from([0, 200]), memory=st.sampled_from([0, 100, 5_000]))
    def start(self, retain: int, memory: int) -> None:
        self.disk = SimDisk()
        self.retain, self.memory = retain, memory
        self.snapshot: tuple[Entry, Entry] | None = None
        self.entries: tuple[Entry, ...] = ()
        self.term, self.vote = 1, None
        self.journal = self.open()
        self.journal.setCurrentTerm(1, None)
        self.journal.add(*entry(1, 0))
        self.note([entry(1, 0)])
        self.journal.sync()
        self.possible: list[State] = [self.state]

    def open(self):  # type: ignore[no-untyped-def]
        sizes = {"segment_bytes": 1500, "retain_bytes": self.retain, "memory_bytes": self.memory}
        return open_journal(self.disk, **sizes, snapshot=self.snapshot)

    @property
    def state(self) -> State:
        return (self.entries, self.term, self.vote)

    def note(self, added: list[Entry]) -> None:
        for one in added:
            self.entries = (*self.entries, one)
            self.possible = [*getattr(self, "possible", []), self.state]

    def cut(self, length: int) -> None:
        self.entries = self.entries[:length]
        self.possible.append(self.state)

    @property
    def last(self) -> Entry:
        return self.entries[-1]

    @rule(count=st.integers(1, 4), size=st.sampled_from([3, 20, 600]))
    def lead(self, count: int, size: int) -> None:
        for _ in range(count):
            new = entry(self.last[1] + 1, self.term, size)
            self.journal.add(*new)
            self.note([new])

    @rule(back=st.integers(0, 6), again=st.integers(0, 6), new=st.integers(0, 3), conflict=st.booleans())
    def follow(self, back: int, again: int, new: int, conflict: bool) -> None:
        """One append message as the library handles it, and Raft's rule for what must remain."""
        floor = self.snapshot[1][1] if self.snapshot else 1
        prev = max(floor, self.last[1] - back)
        first = self.journal.first_index
        if self.last[1] > prev:
            self.journal.deleteEntriesFrom(prev + 1 - first)
        base = self.entries[0][1]
        sent = [*self.entries[prev + 1 - base :][:again]]
        if conflict and new:
            self.advance_term()
        index = (sent[-1][1] if sent else prev) + 1
        existing = index <= self.last[1]
        if not existing or conflict:
            sent += [entry(index + offset, self.term) for offset in range(new)]
        for one in sent:
            self.journal.add(*one)
        self.journal.end_message()
        for one in sent:
            position = one[1] - base
            if position < len(self.entries) and self.entries[position] != one:
                self.cut(position)
            if position == len(self.entries):
                self.note([one])

    def advance_term(self) -> None:
        self.term, self.vote = self.term + 1, None
        self.journal.setCurrentTerm(self.term, self.vote)
        self.possible.append(self.state)

    @rule(voted=st.sampled_from([None, "node-1", "node-2"]))
    def vote_in_a_new_term(self, voted: str | None) -> None:
        self.advance_term()
        if voted:
            self.vote = voted
            self.journal.setCurrentTerm(self.term, voted)
            self.possible.append(self.state)

    @rule()
    def sync(self) -> None:
        self.journal.sync()
        assert not self.journal.dirty
        self.possible = [self.state]
        # The first two and the last may be over and above: they are asked for all the time.
        pinned = [*self.journal[:2], self.journal[-1]]
        assert self.journal.held_bytes <= self.memory + sum(len(command) for command, _, _ in pinned)

    @precondition(lambda self: len(self.entries) > 3)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        """Only what is synced is ever committed, and only what is committed is in a snapshot."""
        self.sync()
        low = self.snapshot[0][1] - self.entries[0][1] + 1 if self.snapshot else 0
        if low > len(self.entries) - 2:
            return
        position = data.draw(st.integers(low, len(self.entries) - 2))
        self.snapshot = (self.entries[position], self.entries[position + 1])
        self.journal.deleteEntriesTo(self.entries[position][1] - self.journal.first_index)

    @rule(ahead=st.integers(-4, 5), conflict=st.booleans())
    def install(self, ahead: int, conflict: bool) -> None:
        """A snapshot arrives: inside the log, or past its end, or from another history."""
        index = max(self.last[1] + ahead, (self.snapshot[1][1] if self.snapshot else 1) + 1)
        if conflict:
            self.advance_term()
        base = self.entries[0][1]
        held = index - base < len(self.entries) and index - 1 - base >= 0 and not conflict
        if held:
            pair = (self.entries[index - 1 - base], self.entries[index - base])
        else:
            pair = (entry(index - 1, self.term), entry(index, self.term))
        self.snapshot = pair
        self.journal.clear()
        for one in pair:
            self.journal.add(*one)
        self.journal.end_message()
        self.entries = joined(self.entries, pair)
        self.possible.append(self.state)

    @rule(seed=st.integers(0, 1 << 20), power=st.booleans(), at=st.integers(0, 12))
    def crash_inside_sync(self, seed: int, power: bool, at: int) -> None:
        """Before its `at`-th operation: 0 the write, 1 the fdatasync, then those of a roll."""
        left = at

        def stop(name: str, path: str) -> None:
            nonlocal left
            if left == 0:
                raise SimCrash(f"before {name}")
            left -= 1

        self.disk.on_operation = stop
        try:
            self.journal.sync()
            self.possible = [self.state]
        except SimCrash:
            pass
        self.disk.on_operation = None
        self.crash(seed, power)

    @rule(seed=st.integers(0, 1 << 20), power=st.booleans())
    def crash(self, seed: int, power: bool) -> None:
        if power:
            self.disk.crash(random.Random(seed))
        else:
            self.disk.kill()
        self.journal = self.open()
        found = (tuple(self.journal[:]), self.journal.getCurrentTerm(), self.journal.getVotedForNodeId())
        allowed = [(joined(entries, self.snapshot), term, vote) for entries, term, vote in self.possible]
        assert found in allowed
        self.entries, self.term, self.vote = found
        self.possible = [self.state]

    @invariant()
    def same_log(self) -> None:
        if not hasattr(self, "journal"):
            return
        held = tuple(self.journal[:])
        assert held == self.entries[len(self.entries) - len(held) :]
        if self.snapshot:
            assert self.journal.first_index <= self.snapshot[0][1]
            assert self.journal.term_at(self.snapshot[1][1]) == self.snapshot[1][2]
        assert self.journal.log_bytes == sum(len(command) for command, _, _ in held)
        assert self.journal.getCurrentTerm() == self.term


JournalMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestJournalModel = JournalMachine.TestCase
