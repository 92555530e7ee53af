"""A whole cluster in one thread under one simulated time: nodes, clocks, disks, network, crashes.

Everything that happens is an event in one heap, ordered by (time, number), and every random choice comes from one
seeded source: the same seed gives the same run, and `trace` is a hash of it.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Iterable
from typing import Any

from cluster.frames import LinkGuards
from cluster.guards import ALL_ON, Guards
from cluster.journal import JournalError, JournalFailed
from cluster.lanes import FRONT, Lane
from cluster.node import ClusterNode
from cluster.options import ClusterOptions, Limits, Timing
from cluster.ports import Member, Message, Outcome
from cluster.reads import ReadDone
from cluster.recordfile import RecordFileCorrupt
from cluster.snapshotfile import SnapshotCorrupt
from tests.checkers.violation import Violation
from tests.reference.register import RegisterMachine
from tests.sim.disk import SimCrash, SimDisk
from tests.sim.network import SimNetwork, SimTransport

BUSY_EVENTS, BUSY_S = 100_000, 0.05
"""More in less time is somebody who does something again and again and waits for nothing: it would never end."""


class NodeStopped(BaseException):
    """A node ended itself: a disk error or a bug. BaseException, so that no handler on the way swallows it."""


class SimClock:
    """A node's own clock: another zero and another rate than true time."""

    def __init__(self, world: World, offset: float, rate: float) -> None:
        self._world = world
        self.offset = offset
        self.rate = rate
        self.stalled = 0.0
        """Seconds that the step under way has waited for its disk: for this node they have passed already."""

    def set_rate(self, rate: float, at: float = 0.0) -> None:
        """Run at another rate from now on, without a step. `at`: up to then its node has read it, if that is later."""
        self.offset += max(self._world.now, at) * (self.rate - rate)
        self.rate = rate

    def now(self) -> float:
        return self.offset + (self._world.now + self.stalled) * self.rate


class _Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimScheduler:
    """The event loop of one life of one node. Dies with it; stands still while the node is stopped."""

    def __init__(self, world: World, site: Site) -> None:
        self._world = world
        self._site = site
        self._life = site.life

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._later(0.0, callback, _Timer())

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer()
        self._later(delay / self._site.clock.rate, callback, timer)
        return timer

    def _later(self, delay: float, callback: Callable[[], None], timer: _Timer) -> None:
        def run() -> None:
            if timer.cancelled or self._site.life != self._life:
                return
            if self._site.stopped:
                self._site.postponed.append(run)
            else:
                self._site.run(callback)

        self._world.at(delay + self._site.clock.stalled, run)

    def run_in_background(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        def run() -> None:
            try:
                self._world.before_work(self._site)
                work()
            except Exception as error:  # noqa: BLE001 (whatever the work raised is the answer)
                done(error)
            else:
                done(None)

        self._later(self._world.rng.uniform(0.001, 0.2), run, _Timer())


class SimNode(ClusterNode):
    """The product's node; the world sees what it applies and restores."""

    def __init__(self, site: Site, *args: Any, **kwargs: Any) -> None:
        self._site = site
        super().__init__(*args, **kwargs)

    # Reads are asked for and answered outside of steps: a crash may be in the middle of that, too.

    def on_message(self, peer: str, message: Message) -> None:
        self._site.run(lambda: super(SimNode, self).on_message(peer, message))

    def read_index(self, timeout: float, done: ReadDone) -> None:
        self._site.run(lambda: super(SimNode, self).read_index(timeout, done))

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        for watch in self._site.world.apply_watchers:
            watch(self._site, index, term, payload)
        super().apply(index, term, payload)
        for watch in self._site.world.state_watchers:
            watch(self._site)

    def _stamp(self) -> int:
        now_ms = super()._stamp()
        for watch in self._site.world.stamp_watchers:
            watch(self._site, self.engine.term, now_ms)
        return now_ms

    def _on_restored(self, index: int) -> None:
        super()._on_restored(index)
        self._site.world.installs += self._site.node is self
        for watch in self._site.world.state_watchers:
            watch(self._site)


class Site:
    """A place where a node runs, over all its lives: its disk and its clock stay."""

    def __init__(self, world: World, member: Member, clock: SimClock) -> None:
        self.world = world
        self.member = member
        self.clock = clock
        self.disk = SimDisk()
        self.life = 0
        self.node: ClusterNode | None = None
        self.machine = world.new_machine()
        self.stopped = False
        self.postponed: list[Callable[[], None]] = []
        self.deaths: list[str] = []
        self.joins = False
        self.stops = 0
        self._starting = False
        self.before_disk: Callable[[str, str], None] | None = None
        """Called before every operation of this site's disk; raise SimCrash there for a crash between two."""
        self.damaged = False
        """Its files are not what it wrote: it must notice."""
        self.slow_sync: Callable[[], float] | None = None
        """Seconds that the next fdatasync takes."""
        self.sits_until = 0.0
        """For this node that time has passed already: nothing goes on before."""
        self.disk.on_operation = self._enter_disk

    def _enter_disk(self, operation: str, path: str) -> None:
        if self.node is None and not self._starting:
            # The library swallows every exception in one place: a dead program must not write on.
            raise SimCrash("a node that is down uses its disk")
        if self.before_disk is not None:
            try:
                self.before_disk(operation, path)
            except SimCrash:
                self.world.crash(self.member.id)
                raise
        if operation == "fdatasync" and self.slow_sync is not None:
            self.clock.stalled += self.slow_sync()

    def run(self, callback: Callable[[], None]) -> None:
        self.world.acted[self.member.id] = self
        try:
            callback()
        except NodeStopped:
            self.world.crash(self.member.id)
        except SimCrash:
            self.world.crash(self.member.id)
        if self.clock.stalled:
            self._sit_out()

    def _sit_out(self) -> None:
        """The disk kept the node's one thread: what it sent meanwhile left late, and nothing else happens."""
        seconds, self.clock.stalled = self.clock.stalled, 0.0
        if self.node is not None and not self.stopped:
            name, life = self.member.id, self.life
            self.world.stop(name)
            self.sits_until = self.world.now + seconds
            self.world.at(seconds, lambda: self.life == life and self.world.resume(name))

    def start(self) -> None:
        if self.node is not None:
            return
        self.life += 1
        self.machine = self.world.new_machine()
        self.world.before_start(self)
        self._starting = True
        try:
            self.run(self._start)
        except (OSError, JournalError, SnapshotCorrupt, RecordFileCorrupt) as error:
            # A file that is damaged though nobody damaged it is a finding, not a refusal.
            if not self.damaged and not isinstance(error, OSError | JournalFailed):
                raise
            reason = f"cannot start: {error}"
            self.run(lambda: self._die(reason))
        finally:
            self._starting = False

    def _start(self) -> None:
        world, me, life = self.world, self.member.id, self.life
        options = ClusterOptions(
            node_id=me,
            cluster_id="sim",
            data_dir="/data",
            members=() if self.joins else world.first_members,
            timing=world.timing,
            limits=world.limits,
        )
        node = SimNode(
            self,
            options,
            self.machine,
            clock=self.clock,
            random=random.Random(world.rng.getrandbits(64)),
            scheduler=SimScheduler(world, self),
            disk=self.disk,
            transport=SimTransport(world.network, me),
            incarnation=world.rng.getrandbits(40),
            pid=self.life,
            stop_process=self._die,
            on_event=lambda kind, fields: world.note(me, kind, fields),
            guards=world.guards,
        )
        if self.life != life:
            raise SimCrash("while starting; the library swallowed it")
        self.node = node
        node.start()
        for watch in world.up_watchers:
            watch(self)

    def _die(self, reason: str) -> None:
        self.deaths.append(reason)
        self.world.note(self.member.id, "died", reason)
        self.world.crash(self.member.id)
        raise NodeStopped(reason)


class World:
    def __init__(
        self,
        seed: int,
        size: int = 3,
        *,
        guards: Guards = ALL_ON,
        link_guards: LinkGuards | None = None,
        timing: Timing | None = None,
        limits: Limits | None = None,
        rates: Iterable[float] = (),
        new_machine: Callable[[], Any] = RegisterMachine,
    ) -> None:
        self.rng = random.Random(seed)
        self.new_machine = new_machine
        self.guards = guards
        self.timing = timing or Timing()
        self.limits = limits or Limits()
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.deliveries = 0
        self.acted: dict[str, Site] = {}
        """Whose code ran since a watcher last cleared this."""
        self.installs = 0
        """Snapshots of a leader that replaced the state of a running node."""
        self.timeline: list[tuple[float, str, str, Any]] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self.pace = self.timing.heartbeat / Timing().heartbeat
        """How many times as slow as usual the cluster is set to be; clients and operators have that much patience."""
        self.network = SimNetwork(self.rng, self.at, link_guards)
        self.network.held_up = lambda name: self.sites[name].clock.stalled
        self.network.now = lambda: self.now
        self.network.on_delivery = self._hash_delivery
        self.watchers: list[Callable[[], None]] = []
        """Called after every event in which somebody acted."""
        self.apply_watchers: list[Callable[[Site, int, int, bytes | None], None]] = []
        self.state_watchers: list[Callable[[Site], None]] = []
        self.stamp_watchers: list[Callable[[Site, int, int], None]] = []
        """Called with the term and the stamp of what a leader may enter now."""
        self.before_start: Callable[[Site], None] = lambda site: None
        """Called with a new machine, before its node is there."""
        self.before_work: Callable[[Site], None] = lambda site: None
        """Called before work in the background; what it raises, the work raised."""
        self.up_watchers: list[Callable[[Site], None]] = []
        self.down_watchers: list[Callable[[Site], None]] = []
        names = [f"n{number + 1}" for number in range(size)]
        self.first_members = tuple(Member(name, f"{name}:7200", f"{name}:7100") for name in names)
        rate_list = list(rates)
        self.sites: dict[str, Site] = {}
        for number, member in enumerate(self.first_members):
            rate = rate_list[number] if number < len(rate_list) else 1.0
            self.sites[member.id] = Site(self, member, SimClock(self, self.rng.uniform(0, 1e6), rate))

    # --- time --------------------------------------------------------------------------------------------------

    def at(self, delay: float, callback: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay if delay > 0.0 else self.now, self._count, callback))

    def run(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def run_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Let events happen until `condition` holds, for at most that many simulated seconds."""
        end, events, watchers, acted, pop = self.now + seconds, self._events, self.watchers, self.acted, heapq.heappop
        busy_since, left = self.now, BUSY_EVENTS
        while not condition():
            if not events or events[0][0] > end:
                self.now = end
                return condition()
            self.now, _, callback = pop(events)
            left -= 1
            if not left:
                took_s = self.now - busy_since
                if took_s < BUSY_S:
                    raise Violation("time_goes_on", f"{BUSY_EVENTS} events in {took_s:.6f} s, of {', '.join(acted)}")
                busy_since, left = self.now, BUSY_EVENTS
            callback()
            if acted:
                for watch in watchers:
                    watch()
        return True

    def note(self, who: str, kind: str, fields: Any) -> None:
        self.timeline.append((self.now, who, kind, fields))
        self._hash.update(repr((round(self.now, 9), who, kind, fields)).encode())

    def mark(self, line: str) -> None:
        """In the trace, and not in the timeline: it happens too often to be read."""
        self._hash.update(line.encode())

    def _hash_delivery(self, sender: str, receiver: str, message: Message) -> None:
        self.deliveries += 1
        line = f"{self.now!r}{sender}>{receiver}{message['type']}{message.get('term', '')}"
        self._hash.update(line.encode())

    def trace(self) -> str:
        return self._hash.hexdigest()

    @property
    def events(self) -> int:
        """How many things happened so far."""
        return self._count - len(self._events)

    # --- nodes -------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names or sorted(self.sites):
            self.sites[name].start()

    def nodes(self) -> list[ClusterNode]:
        return [site.node for _, site in sorted(self.sites.items()) if site.node is not None]

    def node(self, name: str) -> ClusterNode:
        node = self.sites[name].node
        if node is None:
            raise LookupError(f"{name} is down")
        return node

    def leader(self) -> ClusterNode | None:
        """The leader of the highest term that is up."""
        leaders = [node for node in self.nodes() if node.engine.is_leader]
        return max(leaders, key=lambda node: node.engine.term, default=None)

    def crash(self, name: str, *, power: bool = True, noticed_after: float | None = None) -> None:
        """The process is gone and, in a power cut, so is what it had not synced.

        Its peers see their links break at once, or `noticed_after` so many seconds.
        """
        site = self.sites[name]
        if site.node is None and not site._starting:
            return
        site.life += 1
        node, site.node = site.node, None
        site._starting = False
        site.stopped = False
        site.postponed.clear()
        self.network.forget(name)
        if node is not None:
            node.closed = True
            if noticed_after is not None:
                self.network.vanish(name, noticed_after)
            node._transport.close()
        if power:
            site.disk.crash(self.rng)
        else:
            site.disk.kill()
        self.note(name, "crash" if power else "kill", None)
        for watch in self.down_watchers:
            watch(site)

    def stop(self, name: str) -> None:
        """SIGSTOP: the process stands still, its clock does not."""
        if self.sites[name].node is None:
            return
        self.sites[name].stopped = True
        self.sites[name].stops += 1
        self.network.frozen.add(name)
        self.note(name, "stop", None)

    def resume(self, name: str) -> None:
        site = self.sites[name]
        if not site.stopped or self.now < site.sits_until:
            return
        site.stopped = False
        self.note(name, "resume", None)
        postponed, site.postponed = site.postponed, []
        self.network.thaw(name)
        for callback in postponed:
            callback()

    def isolate(self, name: str) -> None:
        for other in self.sites:
            if other != name:
                self.network.cut |= {(name, other), (other, name)}
        self.note(name, "isolate", None)

    def heal(self) -> None:
        self.network.cut.clear()
        self.note("*", "heal", None)

    def add_site(self, name: str, rate: float = 1.0) -> Site:
        member = Member(name, f"{name}:7200", f"{name}:7100")
        site = self.sites[name] = Site(self, member, SimClock(self, self.rng.uniform(0, 1e6), rate))
        site.joins = True
        return site

    def propose(
        self, name: str, command: bytes, timeout: float = 5.0, lane: Lane = FRONT, cost: int = 1
    ) -> list[Outcome]:
        """Outcomes appear in the list that is returned."""
        outcomes: list[Outcome] = []
        site = self.sites[name]
        site.run(lambda: self.node(name).propose(command, timeout, outcomes.append, lane, cost))
        return outcomes
