"""Lock acquire and release next to etcd, ZooKeeper and Redis: `python -m bench.locks`.

One, 16 and 64 clients with a key each, and 64 clients on one key with how fair the queue is. The clients are Python for
every system: a lock's token must be carried from the acquire to the release, which the C generators cannot do.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from bench import lockers, machine
from bench.etcd import Etcd
from bench.holdfast import holdfast
from bench.load import Api, goal, least_goal
from bench.lockers import Held, KazooLockers, NewLocker
from bench.part import Chart, Result, Setting, main
from bench.redis import Redis
from bench.rounds import OURS, Figures, Turn, in_turns, median, ratio
from bench.zookeeper import ZooKeeper

CLIENTS = (1, 16, 64)
CONTENDED = 64
WARM_S = 0.5

Pairs = Callable[[list[str], float], Awaitable[list[Held]]]
"""Runs a client for each of the keys, for so many seconds."""


def summary(held: list[Held], *, contended: bool) -> Figures:
    acquired = sorted(each.granted - each.asked for each in held)
    wall_s = max(each.released for each in held) - min(each.asked for each in held)
    figures = {
        "per_second": len(held) / wall_s,
        "acquire_p50_ms": machine.percentile(acquired, 0.50) * 1e3,
        "acquire_p99_ms": machine.percentile(acquired, 0.99) * 1e3,
        "operations": len(held),
    }
    return figures | (fairness(held) if contended else {})


def fairness(held: list[Held]) -> Figures:
    """How many that had asked before a client still waited when it was granted: 0 is first come, first served.

    Both moments are the client's, so clients that ask within the same fraction of a millisecond may seem to overtake.
    """
    waiting: list[float] = []
    moments = [(each.asked, 0, each.asked) for each in held] + [(each.granted, 1, each.asked) for each in held]
    overtaken = []
    for _, granted, asked in sorted(moments):
        place = bisect.bisect_left(waiting, asked)
        if granted:
            overtaken.append(place)
            waiting.pop(place)
        else:
            waiting.insert(place, asked)
    return {
        "fifo_share": round(sum(place == 0 for place in overtaken) / len(overtaken), 4),
        "overtaken_mean": round(sum(overtaken) / len(overtaken), 3),
        "overtaken_most": max(overtaken),
    }


def by_wire(new: NewLocker) -> Pairs:
    """Clients are made once for each set of keys, and warmed up."""
    made: dict[str, list[lockers.Locker]] = {}

    async def run(keys: list[str], seconds: float) -> list[Held]:
        shape = f"{len(keys)} {len(set(keys))}"
        if shape not in made:
            made[shape] = [await new(key, number) for number, key in enumerate(keys)]
            await lockers.pairs(made[shape], WARM_S)
        return await lockers.pairs(made[shape], seconds)

    return run


def by_kazoo(kazoo: KazooLockers) -> Pairs:
    warm: set[str] = set()

    async def run(keys: list[str], seconds: float) -> list[Held]:
        # In this thread: nothing else happens in the loop while a system is measured.
        if (shape := f"{len(keys)} {len(set(keys))}") not in warm:
            warm.add(shape)
            kazoo.pairs(keys, WARM_S)
        return kazoo.pairs(keys, seconds)

    return run


def turn(what: str, name: str, run: Pairs, keys: list[str], system: Any, seconds: float) -> Turn:
    contended = len(keys) > 1 and len(set(keys)) == 1

    async def work() -> Figures:
        return summary(await run(keys, seconds), contended=contended)

    told = {"generator": "kazoo" if name == "zookeeper" else "the same Python client"}
    leader = (lambda: int(system.pids[0])) if name == OURS else None
    return Turn(what, name, work, lambda: list(system.pids), told, leader)


async def measure(setting: Setting) -> Result:
    systems: dict[str, tuple[Pairs, Any]] = {}
    present = setting.present
    opened: list[Any] = []
    try:
        with holdfast(setting.place("holdfast")) as cluster:
            api = Api(cluster)
            systems[OURS] = by_wire(lockers.of_holdfast(api)), api
            if present.has("etcd"):
                opened.append(etcd := Etcd(setting.place("etcd")))
                systems["etcd"] = by_wire(lockers.of_etcd(etcd.leader_address())), etcd
            if present.has("zookeeper"):
                opened.append(zookeeper := ZooKeeper(setting.place("zookeeper")))
                opened.insert(0, kazoo := KazooLockers(zookeeper.hosts))
                systems["zookeeper"] = by_kazoo(kazoo), zookeeper
            if present.has("redis"):
                for name, servers in (("redis", 1), ("redlock x5", 5)):
                    opened.append(redis := Redis(setting.place(name), synced=True, servers=servers))
                    systems[name] = by_wire(lockers.of_redis(redis.ports)), redis
            return await _measured(setting, systems)
    finally:
        for each in opened:
            each.close()


async def _measured(setting: Setting, systems: dict[str, tuple[Pairs, Any]]) -> Result:
    result = Result()
    shapes = {f"lock pairs, {count} at once": [f"lock-{number}" for number in range(count)] for count in CLIENTS}
    shapes[f"lock pairs, {CONTENDED} on one key"] = ["contended"] * CONTENDED
    for what, keys in shapes.items():
        # Five servers that are polled by 64 clients get nowhere: nobody would wait on Redlock so.
        taken = {name: each for name, each in systems.items() if len(set(keys)) == len(keys) or name != "redlock x5"}
        turns = [turn(what, name, run, keys, system, setting.seconds) for name, (run, system) in taken.items()]
        result.rows += await in_turns(turns, setting.rounds, setting.progress)
    result.goals = goals(result.rows)
    works = tuple(itertools.islice(shapes, len(CLIENTS) + 1))
    result.charts = [
        Chart("per_second", "Lock acquire + release a second (3 nodes)", "pairs/s", "per_second", works),
        Chart("acquire_p99_ms", "Lock acquire: p99 ms", "p99 ms", "acquire_p99_ms", works),
    ]
    result.notes = [
        "Ours, etcd and ZooKeeper have three nodes that sync. Redis is one server that syncs, unreplicated; Redlock is "
        "five. Neither gives a token.",
        "CPU and memory are the servers', without the Python clients that run beside them.",
        "FIFO share: grants to the client that had waited longest. overtaken: how many had asked earlier.",
    ]
    return result


def goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found, one = [], "lock pairs, 1 at once"
    for peer, most in (("etcd", 1.0), ("zookeeper", 0.3)):
        for part in ("p50", "p99"):
            value = ratio(rows, one, f"acquire_{part}_ms", peer)
            found += [goal(f"P4 one client: acquire {part}, ours / {peer}", value["median"], most)] if value else []
    if (p99 := median(rows, one, "acquire_p99_ms")) is not None:
        found.append(goal("P4 one client: acquire p99 ms", p99, 5))
    for count in (16, 64):
        value = ratio(rows, f"lock pairs, {count} at once", "per_second", "etcd")
        found += [least_goal(f"P6 pairs/s of {count} clients: ours / etcd", value["median"], 2)] if value else []
    if (share := median(rows, f"lock pairs, {CONTENDED} on one key", "fifo_share")) is not None:
        found.append(least_goal(f"FIFO share of grants, {CONTENDED} on one key", share, 0.95))
    return found


if __name__ == "__main__":
    main("locks", __doc__, measure)
