"""One node of the cluster: the parts put together, and the order in which they act.

`step` is the whole rhythm. Messages are taken in; elections may be held back; waiting commands enter the log or
leave for the leader; the library ticks (commits, sends); bytes become durable and only then do votes and
acknowledgements leave; what is committed is applied where nobody waits for it. Nothing here blocks but the one
fdatasync a step, and nothing here reads a clock, a socket or a file except through `cluster.ports`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from cluster.callbacks import contained
from cluster.changes import Changes
from cluster.clusterclock import ClusterClock
from cluster.compaction import Compaction
from cluster.elections import Elections
from cluster.engine import Engine
from cluster.filters import Filters
from cluster.guards import ALL_ON, Guards
from cluster.inbox import Inbox
from cluster.journal import JournalError
from cluster.lanes import FRONT, Lane
from cluster.leadership import Leadership
from cluster.levels import levels_of
from cluster.lives import Lives
from cluster.membership import PAYLOAD_KIND as MEMBERSHIP_KIND
from cluster.notice import CommitNotice
from cluster.options import ClusterOptions
from cluster.outbox import Outbox, ends_sending
from cluster.ports import Clock, Denied, Disk, Member, Message, Random, Scheduler, StateMachine, Transport
from cluster.proposals import Done
from cluster.proposer import COMMAND_KINDS, Proposer
from cluster.reads import ReadDone, Reads
from cluster.status import Status, StatusBoard
from cluster.storage import open_storage

OnEvent = Callable[[str, dict[str, Any]], None]


class ClusterNode:
    def __init__(
        self,
        options: ClusterOptions,
        machine: StateMachine,
        *,
        clock: Clock,
        random: Random,
        scheduler: Scheduler,
        disk: Disk,
        transport: Transport,
        incarnation: int,
        pid: int,
        stop_process: Callable[[str], None],
        on_event: OnEvent = lambda kind, fields: None,
        guards: Guards = ALL_ON,
    ) -> None:
        options.check()
        self.options = options
        self.pid = pid
        self._machine, self.levels = machine, levels_of(machine)
        self.clock = clock
        self._scheduler = scheduler
        self._transport = transport
        self._stop_process = stop_process
        self.on_event, self.guards = on_event, guards
        self._step_wanted = False
        self._slow_at = 0.0
        self._seen: tuple[str | None, int] = (None, 0)
        self._config_seen: tuple[int, frozenset[str], tuple[Member, ...]] = (-1, frozenset(), ())
        self.closed = False
        self.dead: str | None = None
        self._open(disk, random, incarnation)

    def _open(self, disk: Disk, random: Random, incarnation: int) -> None:
        """Read what this node has on disk and put the parts together."""
        options, guards, timing, limits = self.options, self.guards, self.options.timing, self.options.limits
        storage = open_storage(
            options, disk=disk, scheduler=self._scheduler, random=random, guards=guards, fatal=self.fatal
        )
        self._lock, self.identity = storage.lock, storage.identity
        self.lives = Lives(disk, options.data_dir, incarnation, self.identity.met, check_log=guards.store_identity)
        self.membership, self.journal = storage.membership, storage.journal
        self.cluster_clock = ClusterClock(timing, guards)
        self.outbox = Outbox(self._transport, self.journal)
        self.compaction = Compaction(
            storage.snapshots,
            self._machine,
            self.cluster_clock,
            self.membership,
            limits=limits,
            guards=guards,
            now=self.clock.now,
            paced=lambda peer: peer in self.engine.paced,
            restored=self._on_restored,
            fatal=self.fatal,
        )
        self.engine = Engine(
            options.node_id,
            sorted(self.membership.voters),
            timing=timing,
            limits=limits,
            journal=self.journal,
            snapshots=self.compaction,
            owner=self,
            clock=self.clock,
            random=random,
            guards=guards,
        )
        self._assemble(random, incarnation)
        self.engine.load(storage.has_snapshot)

    def _assemble(self, random: Random, incarnation: int) -> None:
        common: dict[str, Any] = {"clock": self.clock, "guards": self.guards}
        timing, limits, send = self.options.timing, self.options.limits, self.outbox.add
        self.leadership = Leadership(self.engine, self.membership, timing=timing, **common)
        self.elections = Elections(
            self.engine, self.membership, self.leadership, timing=timing, random=random, send=send, **common
        )
        self.filters = Filters(
            self.engine, self.elections, self.leadership, self.compaction, self.cluster_clock, send=send, **common
        )
        parts = (self.engine, self.leadership)
        asking = {"incarnation": incarnation, "retry_after": timing.heartbeat, "send": send, **common}
        self.proposer = Proposer(*parts, limits=limits, stamp=self._stamp, **asking)
        self.reads = Reads(*parts, **asking)
        self.changes = Changes(
            self.engine, self.membership, self.leadership, self.proposer, timing=timing, send=send, **common
        )
        self.notice = CommitNotice(self.engine, clock=self.clock, scheduler=self._scheduler, kick=self.kick)
        self.board = StatusBoard(self)
        self.inbox = Inbox(self)

    # --- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.follow_membership()
        self._transport.start(self)
        self._heartbeat()
        self.kick()

    def close(self) -> None:
        """Stop at once; what was acknowledged is on disk already."""
        if self.closed:
            return
        self.closed = True
        self.changes.close()
        self.proposer.close()
        self.reads.close()
        self.compaction.close()
        self._transport.close()
        self.journal._destroy()
        self._lock.release()

    def fatal(self, reason: str) -> None:
        """This node can no longer keep its promises: it sends nothing more and the process ends."""
        self.dead = self.dead or reason
        if hasattr(self, "outbox"):
            self.outbox.clear()
        self._stop_process(reason)

    def _heartbeat(self) -> None:
        """A regular step, so that deadlines pass even when nothing arrives."""
        if not self.closed and self.dead is None:
            self.kick()
            self._scheduler.call_later(self.options.timing.heartbeat / 4, self._heartbeat)

    # --- what users of the cluster call ----------------------------------------------------------------------

    def propose(self, command: bytes, timeout: float, done: Done, lane: Lane = FRONT, cost: int = 1) -> None:
        """One command, one outcome, by the deadline. `done` is called on the node's thread."""
        if self.closed or self.dead is not None:
            done(Denied("stopping", "this node is stopping: ask another"))
            return
        self.proposer.submit(command, timeout, contained(done, self.on_event), lane, cost)
        self.kick()

    def read_index(self, timeout: float, done: ReadDone) -> None:
        """Tells when the local state is fit for a linearizable read that began now."""
        if self.closed or self.dead is not None:
            done(Denied("stopping", "this node is stopping: ask another"))
            return
        self.reads.submit(timeout, contained(done, self.on_event))
        if self.reads.pending and not (self.reads.ask() and self.outbox.send_between()):
            self.kick()

    def staleness(self) -> float:
        """Seconds: everything committed longer ago than this is applied here."""
        return 0.0 if self.reads.current else self.clock.now() - self.reads.fresh_as_of

    def add_member(self, member: Member, timeout: float, done: Done) -> None:
        self.changes.add(member, timeout, contained(done, self.on_event))
        self.kick()

    def remove_member(self, node_id: str, timeout: float, done: Done) -> None:
        self.changes.remove(node_id, timeout, contained(done, self.on_event))
        self.kick()

    def transfer(self, target: str | None, timeout: float, done: Done) -> None:
        self.changes.transfer(target, timeout, contained(done, self.on_event))
        self.kick()

    def snapshot(self, timeout: float, done: Done) -> None:
        """Take a snapshot of this node's state in the background; `done` once it is durable."""
        self.compaction.want(self.clock.now() + timeout, contained(done, self.on_event))
        if not self.compaction.busy:
            self.engine.compact()
        self.kick()

    def status(self) -> Status:
        return self.board.status()

    # --- the transport calls these ---------------------------------------------------------------------------

    def on_message(self, peer: str, message: Message) -> None:
        if not self.inbox.answer_at_once(peer, message):
            self.inbox.add(peer, message)
            if self.inbox.is_awaited(message):
                self.kick()

    def on_connected(self, peer: str) -> None:
        """The engine hears of the link once the peer has shown itself; each side says who it is at once."""
        self.board.greet(peer)
        self.on_event("link_up", {"peer": peer})
        self.kick()

    def on_disconnected(self, peer: str) -> None:
        self.inbox.unlinked(peer)
        self.engine.unlinked(peer)
        self.board.forget(peer)
        self.proposer.unlinked(peer)
        if peer == self.engine.leader:
            self.reads.unlinked()
        self.on_event("link_down", {"peer": peer})
        self.kick()

    # --- the engine calls these ------------------------------------------------------------------------------

    def send(self, peer: str, message: Message) -> bool:
        filtered = self.filters.outgoing(peer, message)
        if filtered is None:
            return False
        sent = self.outbox.add(peer, filtered)
        if "commit_index" in filtered:
            self.notice.told = filtered["commit_index"]
        if self.guards.pacing and (self.outbox.is_full(peer) or ends_sending(filtered)):
            self.engine.pace(peer)
        return sent

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        if payload is None:
            if self.engine.is_leader and index == self.engine.noop_index:
                self.cluster_clock.start(self.clock.now(), term)
            self.proposer.applied(index, term, self.cluster_clock.applied_ms, ())
            return
        if payload[:1] in COMMAND_KINDS:
            stamp, commands = msgpack.unpackb(memoryview(payload)[1:], use_list=True)
            now_ms = self.cluster_clock.apply(stamp, term)
            results = self.compaction.apply(index, now_ms, commands)
            if self.proposer.applied(index, term, now_ms, results):
                # Whoever sent commands of it has clients that wait until it has applied them, too.
                self.engine.hurry()
                self.kick()
        elif payload[:1] == MEMBERSHIP_KIND:
            members = [member.id for member in self.membership.at(index)]
            self.proposer.applied(index, term, self.cluster_clock.applied_ms, [members])
            self.identity.follow((*self.membership.reachable(index), *self.changes.leaving))
            self.on_event("members", {"members": members, "index": index})
        else:
            raise ValueError(f"unknown payload kind {payload[:1]!r}")

    def _on_restored(self, index: int) -> None:
        if hasattr(self, "proposer"):
            self.proposer.restored(index)
            self.identity.follow(self.membership.reachable(index))
            self.on_event("snapshot_installed", {"index": index})

    def _stamp(self) -> int:
        return self.cluster_clock.advance(self.clock.now(), self.leadership.lease_valid())

    # --- the step --------------------------------------------------------------------------------------------

    def kick(self) -> None:
        if not self._step_wanted:
            self._step_wanted = True
            self._scheduler.call_soon(self.step)

    def step(self) -> None:
        self._step_wanted = False
        if self.closed or self.dead is not None:
            return
        try:
            self._take_in()
            committed = self.engine.commit_index
            self._act()
            if self.engine.is_leader:
                # The others work on what is sent now while this node applies what they have acknowledged before.
                self.outbox.send_ahead()
                self._apply(committed)
                self.outbox.flush()
            else:
                # The leader waits for the acknowledgement, not for this node's machine.
                self.outbox.flush()
                self._apply(committed)
        except JournalError as error:
            self.fatal(f"the journal failed: {error}")
            return
        except OSError as error:
            self.fatal(f"the disk failed: {error}; check its space and the kernel log, then start the node again")
            return
        self._look_around()

    def _take_in(self) -> None:
        self.inbox.take()
        for peer in self.engine.paced:
            if not self.outbox.is_full(peer):
                self.engine.unpace(peer)

    def _act(self) -> None:
        last = self.journal.last_index
        may_campaign = self.elections.before_tick()
        self.proposer.pump()
        if self.journal.last_index != last:
            self.engine.hurry()
        self.follow_log()
        if self.membership.voters == {self.options.node_id}:
            # Alone, this node's own log is the majority: it must be durable before it counts.
            self.journal.sync()
        self.engine.tick(may_campaign)

    def _apply(self, committed: int) -> None:
        applied = self.engine.applied_index
        self.engine.apply()
        if applied < self.engine.applied_index < self.engine.commit_index:
            # One step applies a bounded piece of what is committed; the rest has its turn behind what waits already.
            self.kick()
        for peer, index in self.compaction.delivered.items():
            if index >= self.journal.first_index:
                self.engine.set_next_index(peer, index + 1)
        self.compaction.delivered.clear()
        self.compaction.settle(self.clock.now())
        self.reads.pump()
        if self.engine.is_leader and self.engine.commit_index > committed:
            self.notice.committed()
        if self.proposer.queued_commands and self.engine.applied_index > applied:
            # It may have waited for that; and what is applied in pieces was committed in an earlier step.
            self.kick()

    def _look_around(self) -> None:
        """After the step: tell of changes, and do what need not be done each time."""
        self._tell_leadership()
        self.changes.step()
        if self.clock.now() >= self._slow_at:
            self._slow_at = self.clock.now() + self.options.timing.heartbeat
            self._every_heartbeat()
        if self.outbox.pending:
            self.kick()

    def _every_heartbeat(self) -> None:
        if self.leadership.ready:
            self._stamp()
            self.changes.promote_learners()
        self.follow_membership()
        self.proposer.expire()
        self.board.report()
        if self.compaction.due(self.journal.log_bytes, self.engine.applied_index - self.journal.first_index):
            self.engine.compact()

    def _tell_leadership(self) -> None:
        now = (self.engine.leader, self.engine.term)
        if now == self._seen:
            return
        if now[0] != self._seen[0] or self._seen[0] == self.options.node_id:
            self.proposer.leader_changed()
            self.reads.leader_changed()
        self._seen = now
        if not self.engine.is_leader:
            self.cluster_clock.stop()
        self.on_event("leader", {"leader": now[0], "term": now[1], "self": self.engine.is_leader})
        self.kick()

    def follow_log(self) -> None:
        """After anything that may have changed the log: cheap while the configuration in it is the same."""
        if self.membership.version != self._config_seen[0]:
            self.follow_membership()

    def follow_membership(self) -> None:
        """Make the engine and the transport follow the configuration in force."""
        listeners = self.changes.listeners()
        known = (*self.board.introduced, *self.membership.reachable(self.engine.commit_index), *self.changes.leaving)
        if self._config_seen == (self.membership.version, listeners, known):
            return
        self._config_seen = (self.membership.version, listeners, known)
        self.engine.set_members(self.membership.voters, listeners)
        peers = {member.id: member.peer for member in known}
        peers.pop(self.options.node_id, None)
        self._transport.set_peers(peers)
