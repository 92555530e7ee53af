"""One seed from beginning to end: the plan, the faults, the clients, every checker, then peace and a last reckoning."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from dataclasses import dataclass, field

from cluster.frames import LinkGuards
from cluster.guards import ALL_ON, Guards
from cluster.node import ClusterNode
from tests.checkers import linearizable
from tests.checkers.clock_bounds import ClockBounds
from tests.checkers.digest_equal import DigestEqual
from tests.checkers.durable import Durable
from tests.checkers.log_matching import LogMatching
from tests.checkers.one_leader_per_term import OneLeaderPerTerm
from tests.checkers.one_valid_lease import OneValidLease
from tests.checkers.progress import Progress
from tests.checkers.violation import Violation
from tests.sim.faults import Faults
from tests.sim.members import Members
from tests.sim.plan import Plan
from tests.sim.workload import Workload
from tests.sim.world import Site, World

PEACE_S = 12.0
"""Once nothing goes wrong any more, for this long at most nothing may work."""
_LOOK_EVERY_S = 0.02
_COMPARE_LOGS_EVERY_S = 0.3
_EXCERPT = 60


@dataclass
class Result:
    """What a run tells: numbers, the trace hash, and the failure if there was one."""

    seed: int
    trace: str = ""
    failure: str | None = None
    invariant: str | None = None
    """Which one broke, or the type of an exception nobody caught."""
    counts: Counter[str] = field(default_factory=Counter)
    timeline: list[str] = field(default_factory=list)


class Run:
    def __init__(self, plan: Plan, guards: Guards = ALL_ON, link_guards: LinkGuards | None = None) -> None:
        self.plan = plan
        self.world = World(
            plan.seed,
            plan.nodes,
            timing=plan.timing,
            limits=plan.limits,
            rates=plan.rates,
            guards=guards,
            link_guards=link_guards,
        )
        self.log = LogMatching()
        self.durable = Durable()
        self.digests = DigestEqual()
        self.leaders = OneLeaderPerTerm(self.log)
        self.leases = OneValidLease()
        self.clock = ClockBounds(plan.timing)
        self.members = Members(self.world)
        self.faults = Faults(self.world, self.members, plan.faults)
        self.workload = Workload(self.world, self.durable, clients=plan.clients, rate=plan.rate)
        self.progress = Progress(self.world, self.members, PEACE_S)
        self._leading: dict[str, ClusterNode] = {}
        """The nodes that lead at this moment."""
        self._look_at = 0.0
        self._compare_at = 0.0

    def run(self) -> None:
        world = self.world
        world.apply_watchers.append(self._on_apply)
        world.state_watchers.append(self._on_state)
        world.down_watchers.append(self._on_down)
        world.watchers.append(self._on_event)
        world.start()
        self.workload.start()
        world.run(self.plan.seconds)
        self._make_peace()
        self._reckon()
        self._power_cut_of_all()
        self._reckon()
        linearizable.check(self.workload.history)

    # --- while it runs -----------------------------------------------------------------------------------------

    def _on_apply(self, site: Site, index: int, term: int, payload: bytes | None) -> None:
        self.log.applied(site.member.id, index, term, payload)

    def _on_state(self, site: Site) -> None:
        self.digests.check(site.member.id, site.machine)
        self.clock.applied(site.member.id, site.life, site.machine.now_ms)

    def _on_down(self, site: Site) -> None:
        for reason in site.deaths:
            if not self.faults.is_sick(site.member.id):
                raise Violation("stays_up", f"{site.member.id} stopped itself: {reason}")
        site.deaths.clear()
        self._leading.pop(site.member.id, None)

    def _on_event(self) -> None:
        """A lease begins, and a term gets its leader, only while a node acts: nothing is missed in between."""
        acted = self.world.acted
        if not acted:
            return
        for name, site in acted.items():
            if site.node is not None and site.node.engine.is_leader:
                self._leading[name] = site.node
                self.leaders.check((site.node,))
            else:
                self._leading.pop(name, None)
        acted.clear()
        self.leases.check(self._leading.values())
        if self.world.now >= self._look_at:
            self._look([site.node for site in self.world.sites.values() if site.node is not None])

    def _look(self, nodes: list[ClusterNode]) -> None:
        now = self.world.now
        self._look_at = now + _LOOK_EVERY_S
        self.clock.sample(now, nodes)
        if now >= self._compare_at:
            self._compare_at = now + _COMPARE_LOGS_EVERY_S
            for node in nodes:
                self.log.check_log(node.options.node_id, node.journal)

    # --- at the end --------------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        self.members.stopped = True
        self.faults.calm()
        self.workload.stop()
        self.progress.check("after the faults ended")

    def _power_cut_of_all(self) -> None:
        for name in sorted(self.world.sites):
            self.world.crash(name)
        self.progress.check("after a power cut of all nodes")

    def _reckon(self) -> None:
        """Everybody has applied everything: is all there that was acknowledged, and nothing else?"""
        committed = list(self.log.payloads())
        self.durable.check_log(committed)
        for node in self.progress.present():
            name = node.options.node_id
            self.durable.check_state(name, self.world.sites[name].machine, committed)

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
        counts.update({f"fault {kind}": number for kind, number in self.faults.happened.items()})
        counts.update({f"op {kind}": number for kind, number in self.workload.outcomes.items()})
        counts.update({f"operator {kind}": number for kind, number in self.members.outcomes.items()})
        return counts


def run_plan(
    plan: Plan, *, keep_timeline: bool = False, guards: Guards = ALL_ON, link_guards: LinkGuards | None = None
) -> Result:
    """Never raises for what the program under test does wrong: that is `Result.failure`."""
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)
    logging.getLogger("cluster").setLevel(logging.CRITICAL)
    run = Run(plan, guards, link_guards)
    result = Result(plan.seed)
    try:
        run.run()
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
        result.timeline = lines if keep_timeline else lines[-_EXCERPT:]
    if result.failure is not None:
        result.failure = f"seed {plan.seed} at {run.world.now:.4f} s: {result.failure}"
    return result


def _line(now: float, who: str, kind: str, fields: object) -> str:
    told = " ".join(f"{key}={value}" for key, value in fields.items()) if isinstance(fields, dict) else fields or ""
    return f"{now:10.4f}  {who:<3} {kind:<18} {told}"
