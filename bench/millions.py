"""Five million leases on a real three-node cluster, next to etcd and Redis: `python -m bench.millions`.

Renewals again, with a hundred times more leases; memory a lease on every node, without the bytes of its name; how long
a snapshot takes and what others feel meanwhile; how long a node needs to come back with all of them.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import machine
from bench.etcd import Etcd
from bench.holdfast import Holdfast, holdfast
from bench.load import Api, goal, least_goal
from bench.part import Chart, Result, Setting, main
from bench.probe import Probe
from bench.redis import Redis
from bench.renewing import CONNECTIONS, EtcdLeases, Leases, our_turn, redis_turn, session_turn
from bench.rounds import OURS, in_turns, median, ratio, row_of
from cluster.options import Timing

FEW, MANY = 50_000, 5_000_000
SESSIONS, EACH = 50, 10_000
QUIET_S = 3.0
RESTART_S = 300
COUNTED = 1_000
"""The batch that the goals speak of."""
IN_TURNS = ", in turns"
"""Of few leases and of many on two clusters: what a renewal costs more with many is told by neighbours in time."""

ETCD_ONE, ETCD_MANY, REDIS = "etcd, one a stream", "etcd, streams", "redis, ZADD x100"


async def measure(setting: Setting) -> Result:
    result, present = Result(), setting.present
    etcd = Etcd(setting.place("etcd")) if present.has("etcd") else None
    redis = Redis(setting.place("redis"), synced=False) if present.has("redis") else None
    try:
        theirs = EtcdLeases(etcd, setting.amount(FEW, 5_000), setting.progress) if etcd else None
        with holdfast(setting.place("holdfast")) as cluster:
            await _ours(setting, cluster, theirs, redis, result)
    finally:
        for peer in (etcd, redis):
            if peer:
                peer.close()
    return result


async def _ours(
    setting: Setting, cluster: Holdfast, theirs: EtcdLeases | None, redis: Redis | None, result: Result
) -> None:
    few, many = setting.amount(FEW, 5_000), setting.amount(MANY, 100_000)
    sessions, each = setting.amount(SESSIONS, 10), setting.amount(EACH, 1_000)
    leases = Leases(Api(cluster), setting.progress)
    await leases.grow(few)
    await leases.settle()
    first = our_turn(leases, COUNTED, setting.seconds)
    result.rows += await in_turns([first], setting.rounds, setting.progress)
    before, named = await _resident(leases.api), leases.name_bytes
    setting.progress(f"acquiring {many:,} leases, {sessions * each:,} of them owned by sessions")
    loaded_s = await leases.grow(many - sessions * each)
    await leases.own_by_sessions(sessions, each)
    await leases.settle()
    after = await _resident(leases.api)
    result.figures["load_s"] = round(loaded_s, 1)
    result.figures["leader_changes_while_loading"] = leases.api.leader_changes
    result.figures["resident_mib"] = after
    result.figures["bytes_a_lease"] = [
        round(((b - a) * (1 << 20) - (leases.name_bytes - named)) / (many - few), 1)
        for a, b in zip(before, after, strict=True)
    ]
    await _all_renewed(setting, leases, theirs, redis, result)
    await _beside_few(setting, leases, few, result)
    result.figures["snapshots"] = {
        "follower": await _snapshot(setting, leases.api, 1),
        "leader": await _snapshot(setting, leases.api, 0),
    }
    result.figures["restart"] = _restart(setting, cluster, setting.place("holdfast"))
    result.goals = goals(result, first.what, f"renewals x{COUNTED:,}, {leases.all:,} leases")
    result.notes.append(f"etcd has {few:,} leases, which is kind to it: more were not tried.")
    result.charts = [
        Chart("per_second", f"Lease renewals a second, {leases.all:,} leases", "renewals/s", "per_second"),
        Chart("cpu_us", "CPU of a renewal, all processes of the system: µs", "µs", "cpu_us_each"),
    ]
    leases.api.close()


async def _all_renewed(
    setting: Setting, leases: Leases, theirs: EtcdLeases | None, redis: Redis | None, result: Result
) -> None:
    ours = {batch: our_turn(leases, batch, setting.seconds) for batch in CONNECTIONS}
    turns = [*ours.values(), session_turn(leases, setting.seconds)]
    if theirs:
        one, streams = theirs.turns(setting.seconds, ours[1].what, ours[COUNTED].what)
        turns.insert(1, one)
        turns.insert(turns.index(ours[COUNTED]) + 1, streams)
    if redis:
        setting.progress(f"  Redis: {leases.all:,} members")
        redis.fill_leases(leases.all)
        turns.insert(turns.index(ours[COUNTED]), redis_turn(redis, leases.all, setting.seconds, ours[COUNTED].what))
    result.rows += await in_turns(turns, setting.rounds, setting.progress)


async def _beside_few(setting: Setting, leases: Leases, few: int, result: Result) -> None:
    """Minutes lie between the first round with few leases and those with many: the machine may be another by then."""
    setting.progress(f"a second cluster, with {few:,} leases")
    with holdfast(setting.place("few")) as cluster:
        others = Leases(Api(cluster), setting.progress)
        await others.grow(few)
        await others.settle()
        turns = [our_turn(each, COUNTED, setting.seconds) for each in (others, leases)]
        turns = [replace(turn, what=turn.what + IN_TURNS) for turn in turns]
        result.rows += await in_turns(turns, 2 * setting.rounds, setting.progress)
        others.api.close()


async def _resident(api: Api) -> list[float]:
    """MiB of each node, when it has come to rest."""
    await asyncio.sleep(QUIET_S)
    return [round(machine.resident_mib([pid]), 1) for pid in api.pids]


async def _snapshot(setting: Setting, api: Api, node: int) -> dict[str, Any]:
    """Locks are asked of the leader, /healthz of the node that takes the snapshot."""
    probe = Probe(api.addresses[node], api.addresses[0])
    try:
        idle = (await probe.watch(setting.seconds + 1)).figures()
        await probe.taken()
        began = time.monotonic()
        await api.post("/cluster/snapshot?timeout_ms=300000", node=node)
        taken_s = time.monotonic() - began
        felt = (await probe.taken()).within([(began, began + taken_s)]).figures()
    finally:
        probe.close()
    setting.progress(f"  snapshot by {'the leader' if node == 0 else 'a follower'}: {taken_s:.2f} s")
    return {"seconds": round(taken_s, 2), "idle": idle, "meanwhile": felt}


def _restart(setting: Setting, cluster: Holdfast, directory: Path) -> dict[str, float]:
    """A follower ends in good order and comes back: until it says that it is ready, and that it has all."""
    leader = cluster.leader()
    number = next(other for other in cluster.numbers if other != leader)
    cluster.terminate(number)
    began = time.monotonic()
    cluster.start(number)
    cluster.wait_ready(number, RESTART_S)
    ready_s = time.monotonic() - began
    kept = sum(path.stat().st_size for path in (directory / f"n{number}").rglob("*") if path.is_file())
    found = {
        "ready_s": round(ready_s, 2),
        "resident_mib": round(machine.resident_mib([cluster.processes[number].pid]), 1),
        "disk_mib": round(kept / (1 << 20), 1),
    }
    setting.progress(f"  restart of a follower: {found}")
    return found


# --- what came out --------------------------------------------------------------------------------------------------


def goals(result: Result, few: str, many: str) -> list[dict[str, Any]]:
    rows, count = result.rows, (row_of(result.rows, many) or {}).get("leases", 0)
    found = []
    if (rate := median(rows, many, "per_second")) is not None:
        found.append(least_goal(f"P1 durable renewals/s at {count:,} leases, batches of 1,000", rate, 2_000_000))
    one = many.replace(f"x{COUNTED:,}", "x1")
    for peer, peer_what, least in ((REDIS, many, 10), (ETCD_MANY, many, 5), (ETCD_ONE, one, 35)):
        if by := ratio(rows, many, "per_second", peer, peer_what=peer_what):
            found.append(least_goal(f"P1 renewals: ours / {peer}", by["median"], least))
    sessions = next((row for row in rows if row["what"].startswith("sessions")), None)
    if sessions:
        text = f"P2 leases kept alive a second by sessions of {sessions['leases_a_session']:,}"
        found.append(least_goal(text, sessions["figures"]["per_second"]["median"], 50_000_000))
    if row := row_of(rows, many):
        found.append(goal("P3 bytes sent a renewal, batches of 1,000", row["bytes_sent_each"], 9))
    found.append(goal("P7 bytes a lease beyond its name, most of the nodes", max(result.figures["bytes_a_lease"]), 100))
    few, many = few + IN_TURNS, many + IN_TURNS
    for key, name, cost, by in (("cpu_us_each", "CPU", many, few), ("per_second", "time", few, many)):
        if more := ratio(rows, cost, key, OURS, peer_what=by):
            text = f"P10 {name} of a renewal at {count:,} leases / at the few, in turns"
            found.append(goal(text, more["median"], 1.3))
    for place, snapshot in result.figures["snapshots"].items():
        if snapshot["meanwhile"]:
            stall = snapshot["meanwhile"]["longest_stall_ms"]
            text = f"longest stall of the {place} while it takes a snapshot, ms"
            found.append(goal(text, stall, Timing().heartbeat * 1e3))
    return found


if __name__ == "__main__":
    main("millions", __doc__, measure)
