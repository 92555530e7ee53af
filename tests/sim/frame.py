"""What every simulated run is made of, whatever its clients do: a world, its faults, peace, and a last reckoning.

A workload is a subclass: it says which machine the nodes run, what its clients do, and what must have come true when
nothing goes wrong any more. What holds for any workload is checked here, at every event: one log, one leader a term,
one lease, one clock, one state an index, and no node that stops itself though its disk is well.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

import msgpack

from cluster.frames import LinkGuards
from cluster.guards import ALL_ON, Guards
from cluster.node import COMMAND_KINDS, ClusterNode
from coordinator.machine import machine
from coordinator.machine.budget import Budget
from tests.checkers.clock_bounds import ClockBounds
from tests.checkers.digest_equal import DigestEqual, RestoredCopy
from tests.checkers.log_matching import LogMatching
from tests.checkers.one_leader_per_term import OneLeaderPerTerm
from tests.checkers.one_valid_lease import OneValidLease
from tests.checkers.progress import Progress
from tests.checkers.violation import Violation
from tests.sim.faults import Faults
from tests.sim.members import Members
from tests.sim.plan import Kinds, Plan, draw
from tests.sim.world import Site, World

PEACE_S = 12.0
"""Once nothing goes wrong any more, for this long at most nothing may work."""
_LOOK_EVERY_S = 0.02
_COMPARE_LOGS_EVERY_S = 0.3
_STAMP_BYTES = 16
"""Of an entry: the stamp is in them, whatever follows."""
EXCERPT = 60
"""Lines of the timeline before a failure."""
BRIEF = frozenset(
    ["fault", "heal", "crash", "kill", "died", "start", "stop", "resume", "members", "failpoint", "state"]
)
"""What a timeline in brief tells, beside who leads."""


@dataclass
class Result:
    """What a run tells: numbers, the trace hash, and the failure if there was one."""

    workload: str
    seed: int
    trace: str = ""
    failure: str | None = None
    invariant: str | None = None
    """Which one broke, or the type of an exception nobody caught."""
    counts: Counter[str] = field(default_factory=Counter)
    timeline: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    shared: bool = False
    """In the plan that all workloads share."""

    @property
    def replay(self) -> str:
        return f"make sim SEED={self.seed} WORKLOAD={self.workload}{' SHARED=1' if self.shared else ''}"


class Complaints(logging.Handler):
    """What the product logs as an error, and goes on: a bug in a route, a turn of a leader's loop that failed."""

    LOGGERS = ("coordinator", "holdfast", "aiohttp", "asyncio")

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        trace = "" if record.exc_info is None else logging.Formatter().formatException(record.exc_info)
        self._heard.append(f"{record.name}: {record.getMessage()} {getattr(record, 'fields', '')}\n{trace}")

    def check(self) -> None:
        if self._heard:
            raise Violation("no_errors_logged", self._heard[0])

    @contextmanager
    def listening(self) -> Iterator[None]:
        loggers = [logging.getLogger(name) for name in self.LOGGERS]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.ERROR)
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
                logger.removeHandler(self)


class Run:
    NAME: ClassVar[str]
    EVERY: ClassVar[int] = 1
    """Of so many seeds of a long simulation, one is run."""
    SECONDS: ClassVar[float | None] = None
    """Simulated time under faults; None is what the seed says."""
    PACES: ClassVar[Sequence[float]] = (1.0,)
    MORE: ClassVar[Kinds] = {}
    """Kinds of faults beside those of the cluster, and who knows how to do them."""
    FAULTS: ClassVar[type[Faults]] = Faults
    COPIED: ClassVar[bool] = True
    """Its nodes run the product's machine, of which a restored copy must be like them."""
    COMPARE_EVERY: ClassVar[int] = 1
    """Digests are compared at indexes that this divides: some cost a pass over the state."""

    def __init__(
        self,
        plan: Plan,
        new_machine: Callable[[], Any],
        guards: Guards = ALL_ON,
        link_guards: LinkGuards | None = None,
    ) -> None:
        self.plan = plan
        self.world = World(
            plan.stream,
            plan.nodes,
            timing=plan.timing,
            limits=plan.limits,
            rates=plan.rates,
            guards=guards,
            link_guards=link_guards,
            new_machine=new_machine,
        )
        self.log = LogMatching()
        self.digests = DigestEqual()
        self.copy = RestoredCopy(random.Random(f"copy {self.NAME} {plan.seed}"))
        self._applying: bytes | None = None
        self.leaders = OneLeaderPerTerm(self.log)
        self.leases = OneValidLease()
        self.clock = ClockBounds(plan.timing)
        self.members = Members(self.world)
        self.faults = self.FAULTS(self.world, self.members, plan)
        self.progress = Progress(self.world, self.members, PEACE_S * self.world.pace)
        self.complaints = Complaints()
        self._leading: dict[str, ClusterNode] = {}
        """The nodes that lead at this moment."""
        self._look_at = 0.0
        self._compare_at = 0.0

    # --- what a workload says --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The clients start."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """There is nothing left to wait for: the faults may end before their time."""
        return False

    def rest(self) -> None:
        """The faults are over: the clients stop, or go on without mischief of their own."""
        raise NotImplementedError

    def finish(self) -> None:
        """In peace, with a leader that all follow: what must come true, and what must be so in the end."""
        raise NotImplementedError

    def applied(self, site: Site) -> None:
        """After every entry and every restored snapshot."""

    def revision_of(self, machine: Any) -> int:
        return int(machine.revision)

    def digest_of(self, machine: Any) -> bytes:
        return bytes(machine.digest())

    def load_counts(self) -> Counter[str]:
        raise NotImplementedError

    # --- a run -----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """As the plan says, and nothing may log an error."""
        with _little_at_once(self.plan.expiries_an_entry), self.complaints.listening():
            self.run()

    def run(self) -> None:
        world = self.world
        world.apply_watchers.append(self._on_apply)
        world.state_watchers.append(self._on_state)
        world.stamp_watchers.append(self._on_stamp)
        world.down_watchers.append(self._on_down)
        world.watchers.append(self._on_event)
        world.start()
        self.begin()
        world.run_until(self.is_over, self.plan.seconds)
        self.members.stopped = True
        self.faults.calm()
        self.rest()
        self.progress.wait(self.progress.settled, "no leader that all members follow after the faults ended")
        self.finish()
        self.complaints.check()

    def _on_apply(self, site: Site, index: int, term: int, payload: bytes | None) -> None:
        self.log.applied(site.member.id, index, term, payload)
        self._applying = payload
        if payload is not None and payload[:1] in COMMAND_KINDS:
            self.clock.entered(index, term, _stamp_of(payload))

    def _on_stamp(self, site: Site, term: int, now_ms: int) -> None:
        self.clock.stamped(term, now_ms, self.world.now + site.clock.stalled)

    def _on_state(self, site: Site) -> None:
        self.clock.applied(site.member.id, site.life, site.machine.now_ms)
        revision = self.revision_of(site.machine)
        payload, self._applying = self._applying, None
        if payload is not None and payload[:1] in COMMAND_KINDS and self.COPIED:
            self.copy.follow(site.machine, revision, *msgpack.unpackb(payload[1:]))
        if revision % self.COMPARE_EVERY == 0:
            self.digests.check(site.member.id, revision, self.digest_of(site.machine))
        self.applied(site)

    def _on_down(self, site: Site) -> None:
        for reason in site.deaths:
            if not self.faults.is_sick(site.member.id):
                raise Violation("stays_up", f"{site.member.id} stopped itself: {reason}")
        site.deaths.clear()
        self._leading.pop(site.member.id, None)

    def _on_event(self) -> None:
        """A lease begins, and a term gets its leader, only while a node acts: nothing is missed in between."""
        self.complaints.check()
        acted, leading = self.world.acted, self._leading
        for name, site in acted.items():
            node = site.node
            if node is not None and node.engine.is_leader:
                leading[name] = node
                self.leaders.check((node,))
            elif name in leading:
                del leading[name]
        acted.clear()
        self.leases.check(leading.values())
        if self.world.now >= self._look_at:
            self._look([site.node for site in self.world.sites.values() if site.node is not None])

    def _look(self, nodes: list[ClusterNode]) -> None:
        now, pace = self.world.now, self.world.pace
        self._look_at = now + _LOOK_EVERY_S * pace
        self.clock.sample(now, nodes)
        if now >= self._compare_at:
            self._compare_at = now + _COMPARE_LOGS_EVERY_S * pace
            for node in nodes:
                name = node.options.node_id
                with self.world.sites[name].disk.unwatched():
                    self.log.check_log(name, node.journal)

    # --- at the end ------------------------------------------------------------------------------------------------

    def machines(self) -> list[Any]:
        """Those of the members."""
        return [self.world.sites[node.options.node_id].machine for node in self.progress.present()]

    def equal_machines(self) -> list[Any]:
        """Those of the members, once all have applied the same: they must be in the same state."""
        present = self.progress.present  # asked each time: one that was removed may only now be gone
        self.progress.wait(
            lambda: len({(node.engine.applied_index, node.journal.last_index) for node in present()}) == 1,
            "the members do not reach the same entry",
        )
        machines = self.machines()
        digests = {self.digest_of(machine).hex() for machine in machines}
        if len(digests) != 1:
            raise Violation("digest_equal", "the members came to rest in different states")
        self.world.note("*", "state", *digests)
        return machines

    def counts(self) -> Counter[str]:
        world = self.world
        kinds = Counter(kind for _, _, kind, _ in world.timeline)
        counts: Counter[str] = Counter()
        counts["simulated ms"] = int(world.now * 1000)
        counts["events"] = world.events
        counts["messages"] = world.deliveries
        counts["lease checks"] = self.leases.checks
        counts["entries"] = self.log.last_committed
        counts["leaders"] = len(self.leaders.leaders)
        counts["snapshots installed"] = world.installs
        counts["membership changes"] = kinds["members"]
        counts["nodes that stopped themselves"] = kinds["died"]
        counts["frames refused"] = world.network.refused.total()
        counts.update({f"fault {kind}": number for kind, number in self.faults.happened.items()})
        for site in world.sites.values():
            counts.update({f"fault {kind}": number for kind, number in site.disk.met.items()})
        counts.update({f"operator {kind}": number for kind, number in self.members.outcomes.items()})
        counts.update(self.load_counts())
        return counts


def planned(
    kind: type[Run], seed: int, nodes: int | None = None, seconds: float | None = None, *, shared: bool = False
) -> Plan:
    """The workload's own plan of this seed, or the one that all workloads share."""
    workload = None if shared else kind.NAME
    return draw(seed, nodes, seconds or kind.SECONDS, kind.PACES, kind.MORE, workload)


def quiet() -> None:
    """What the nodes log of all that is done to them is no news here."""
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)
    logging.getLogger("cluster").setLevel(logging.CRITICAL)


def run_plan(kind: type[Run], plan: Plan, *, keep_timeline: bool = False, **options: Any) -> Result:
    """Never raises for what the program under test does wrong: that is `Result.failure`."""
    quiet()
    run = kind(plan, **options)
    result = Result(kind.NAME, plan.seed, shared=plan.shared)
    try:
        run.play()
    except KeyboardInterrupt:
        raise
    except Violation as violation:
        result.failure, result.invariant = str(violation), violation.invariant
    except (Exception, SystemExit) as error:  # noqa: BLE001 (any of them is a finding)
        result.invariant = type(error).__name__
        result.failure = f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-8:])}"
    result.trace = run.world.trace()
    result.counts = run.counts()
    if result.failure is not None or keep_timeline:
        lines = [_line(*event) for event in run.world.timeline]
        result.timeline = lines if keep_timeline else lines[-EXCERPT:]
    if result.failure is not None:
        result.failure = f"{kind.NAME}, seed {plan.seed} at {run.world.now:.4f} s: {result.failure}"
    return result


@contextmanager
def _little_at_once(expiries: int) -> Iterator[None]:
    """An entry works off so little by itself that its bound is met all the time; sweeps do the rest."""

    def little(*given: Any, **named: Any) -> Budget:
        budget = Budget(*given, **named)
        budget.expiries = min(budget.expiries, expiries)
        return budget

    with patch.object(machine, "Budget", little):
        yield


def _stamp_of(payload: bytes) -> int:
    """The first of its parts: the commands behind it are not looked at."""
    parts = msgpack.Unpacker()
    parts.feed(payload[1 : 1 + _STAMP_BYTES])
    parts.read_array_header()
    return int(parts.unpack())


def _line(now: float, who: str, kind: str, fields: object) -> str:
    told = " ".join(f"{key}={value}" for key, value in fields.items()) if isinstance(fields, dict) else fields or ""
    return f"{now:10.4f}  {who:<3} {kind:<18} {told}"


def in_brief(timeline: Sequence[str]) -> list[str]:
    """Faults, nodes that go down and come back, changes of members, and each leader once, by itself."""
    return [line for line in timeline if _kind(line) in BRIEF or (_kind(line) == "leader" and "self=True" in line)]


def _kind(line: str) -> str:
    return line.split(maxsplit=3)[2]
