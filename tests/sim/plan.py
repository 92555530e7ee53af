"""What one seed means: the size, the clocks, the limits, and the list of faults with their times.

All of it is drawn before the run begins and stands in plain values, so a failing run can be repeated with fewer faults.
Each workload draws its own: the same seed of two workloads is two schedules. Once it was one schedule for all of them,
and the seeds that were found then are kept as they were: those plans are `shared`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.options import MIB, Limits, Timing
from coordinator.machine.limits import MAX_EXPIRIES_PER_ENTRY

WARM_UP_S = 2.0
"""Before the first fault: time for a leader."""

Kinds = Mapping[str, tuple[float, Callable[[random.Random], float]]]
"""How often each kind of fault comes, and how long it lasts."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong at `at`, for `seconds`. `dice` decides its details, `target` whom it meets."""

    at: float
    kind: str
    target: str
    """`leader`, `all`, or a number that picks one of the nodes there are then."""
    seconds: float
    dice: tuple[float, ...]

    def __str__(self) -> str:
        dice = ", ".join(f"{value:.3f}" for value in self.dice)
        return f"{self.at:7.3f} s  {self.kind:<12} {self.target:<7} for {self.seconds:5.2f} s  ({dice})"


@dataclass(frozen=True)
class Plan:
    seed: int
    workload: str | None
    """Whose own it is; None is one that all workloads share."""
    nodes: int
    seconds: float
    clients: int
    rate: float
    rates: tuple[float, ...]
    timing: Timing
    limits: Limits
    faults: tuple[Fault, ...]

    @property
    def shared(self) -> bool:
        return self.workload is None

    @property
    def stream(self) -> int:
        """The seed of all that chance decides in the run itself."""
        return self.seed if self.shared else random.Random(f"world {self.workload} {self.seed}").getrandbits(64)

    @property
    def expiries_an_entry(self) -> int:
        """How much of what is due an entry may work off: now and then so little that some is always left."""
        usual = MAX_EXPIRIES_PER_ENTRY
        drawn = random.Random(f"expiries {self.workload} {self.seed}").choice((usual, usual, usual, 12, 3))
        return usual if self.shared else drawn

    def with_faults(self, faults: Sequence[Fault]) -> Plan:
        return replace(self, faults=tuple(faults))


SHARED_KINDS: Kinds = {
    "weather": (3.0, lambda rng: rng.uniform(0.5, 5.0)),
    "reset": (1.5, lambda rng: 0.0),
    "one_way": (1.5, lambda rng: rng.uniform(0.1, 4.0)),
    "lag": (1.5, lambda rng: rng.uniform(0.3, 4.0)),
    "isolate": (2.0, lambda rng: rng.uniform(0.1, 4.0)),
    "split": (1.5, lambda rng: rng.uniform(0.3, 4.0)),
    "bridge": (1.0, lambda rng: rng.uniform(0.3, 4.0)),
    "ring": (0.6, lambda rng: rng.uniform(0.5, 4.0)),
    "flap": (0.7, lambda rng: rng.uniform(1.0, 3.0)),
    "power_cut": (2.5, lambda rng: rng.uniform(0.05, 3.0)),
    "kill": (1.0, lambda rng: rng.uniform(0.05, 2.0)),
    "disk_crash": (2.0, lambda rng: rng.uniform(0.05, 2.0)),
    "stop": (2.5, lambda rng: rng.choice((rng.uniform(0.05, 0.5), rng.uniform(0.5, 4.0)))),
    "clock_rate": (0.7, lambda rng: 0.0),
    "snapshot": (1.5, lambda rng: 0.0),
    "transfer": (1.5, lambda rng: 0.0),
    "add": (0.8, lambda rng: 0.0),
    "remove": (0.8, lambda rng: 0.0),
    "replace": (0.6, lambda rng: 0.0),
    "disk_full": (0.4, lambda rng: rng.uniform(0.3, 2.0)),
    "disk_error": (0.5, lambda rng: rng.uniform(0.1, 1.0)),
    "slow_disk": (0.8, lambda rng: rng.uniform(0.5, 4.0)),
    "bit_flip": (0.5, lambda rng: rng.uniform(0.05, 1.0)),
}
"""Those of the cluster in plans that all workloads share."""
KINDS: Kinds = {**SHARED_KINDS, "flap_link": (0.9, lambda rng: rng.uniform(1.0, 4.0))}
"""Those of the cluster."""
RING_NODES = 4
"""Of fewer, everybody is everybody's neighbour."""
NO_MORE: Kinds = {}


def draw(
    seed: int,
    nodes: int | None = None,
    seconds: float | None = None,
    paces: Sequence[float] = (1.0,),
    more: Kinds = NO_MORE,
    workload: str | None = None,
) -> Plan:
    """`paces`: of these one is drawn. A cluster set to be slow costs as much to simulate for ten times the time.

    `more`: kinds of faults beside those of the cluster. `workload`: whose plan it is; None is that of all of them.
    """
    rng = random.Random(f"plan {seed}" if workload is None else f"plan {workload} {seed}")
    drawn_nodes = rng.choice((3, 3, 5))
    drawn_seconds = rng.uniform(14, 22)
    pace = rng.choice(paces)
    nodes, seconds = nodes or drawn_nodes, (seconds or drawn_seconds) * pace
    timing = _timing(pace)
    drift = timing.drift * rng.choice((0.0, 1.0, 1.0))
    kinds = {**(SHARED_KINDS if workload is None else KINDS), **more}
    if workload is not None and nodes < RING_NODES:
        del kinds["ring"]
    return Plan(
        seed=seed,
        workload=workload,
        nodes=nodes,
        seconds=seconds,
        clients=rng.choice((2, 4, 6)),
        rate=rng.uniform(2, 14) / pace,
        rates=tuple(1 + drift * rng.choice((-1, 1, rng.uniform(-1, 1))) for _ in range(nodes)),
        timing=timing,
        limits=_limits(rng),
        faults=_faults(rng, kinds, seconds, pace),
    )


def _timing(pace: float) -> Timing:
    usual = Timing()
    return Timing(usual.heartbeat * pace, usual.election_min * pace, usual.election_max * pace, usual.drift)


def _limits(rng: random.Random) -> Limits:
    """Small ones, so that segments roll, logs are compacted and snapshots travel in pieces all the time."""
    log_bytes = rng.choice((2_000, 10_000, MIB))
    return Limits(
        command_bytes=64 * 1024,
        entry_bytes=rng.choice((200, 2_000, 65_536)),
        append_bytes=rng.choice((500, 5_000, MIB)),
        frame_bytes=4 * MIB,
        link_buffer_bytes=8 * MIB,
        segment_bytes=rng.choice((1_000, 8_000, 256 * 1024)),
        log_bytes=log_bytes,
        log_entries=rng.choice((10, 50, 500)),
        retain_bytes=rng.choice((0, log_bytes // 4, log_bytes)),
        log_memory_bytes=log_bytes // 10,
        snapshot_chunk_bytes=rng.choice((100, 1_000, 65_536)),
        apply_bytes=rng.choice((1, 300, MIB)),
    )


def _faults(rng: random.Random, kinds: Kinds, seconds: float, pace: float) -> tuple[Fault, ...]:
    """Some runs are quiet, some are stormy, and each favours some kinds: the mixtures matter."""
    every = rng.choice((0.4, 0.8, 1.5, 3.0)) * pace
    weights = {kind: weight * rng.choice((0.0, 0.5, 1.0, 1.0, 4.0)) for kind, (weight, _) in kinds.items()}
    weights["weather"] += 0.1
    faults: list[Fault] = []
    at = WARM_UP_S * pace + rng.expovariate(1 / every)
    while at < seconds:
        kind = rng.choices(list(weights), list(weights.values()))[0]
        target = rng.choice(("leader", "leader", "all" if rng.random() < 0.2 else "leader", *map(str, range(5))))
        dice = tuple(rng.random() for _ in range(4))
        faults.append(Fault(at, kind, target, kinds[kind][1](rng) * pace, dice))
        at += rng.expovariate(1 / every)
    return tuple(faults)
