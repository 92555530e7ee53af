"""Tasks through a real three-node cluster, next to a list in Redis, and the thrash experiment: `-m bench.dispatch`.

A round is the whole life of a batch of tasks: put in, handed out, completed. Redis does the same work the way it is
usually done: LPUSH; a script that moves items from the list to a sorted set scored by the end of their visibility
timeout; ZREM. It is one server with the log synced on every write and replicates nothing, so it does less; and it
hands out no tokens, so a late worker's completion counts there. The load generator is one Python process on the same
machine, with the same connections for both. The thrash experiment (bench/thrash.py) needs no network.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from bench import charts, machine, thrash
from bench.load import Api, Progress, goal, least_goal, repeat, results_directory, summary, tell_goals
from bench.redis import Redis, version
from bench.wire import Wire, connect
from tests.cli.processes import Up, up

LEVELS = ((1, 1), (1, 100), (8, 1), (8, 100))
"""(clients at once, tasks in a batch)"""
PAYLOAD = "x" * 100
VISIBLE_S = 60
STEADY, HASTY = (8, 3), (4, 1)
"""Beats of a lease and of its debounce: as it should be, and so short that tasks bounce often."""
CUT_GOAL, SLOWER_GOAL = 10.0, 1.5
ACQUIRE = """
local items = redis.call('RPOP', KEYS[1], ARGV[2]) or {}
for _, item in ipairs(items) do redis.call('ZADD', KEYS[2], ARGV[1], item) end
return cjson.encode(items)
"""

Round = Callable[[int], Awaitable[None]]

# --- throughput -------------------------------------------------------------------------------------------------------


def holdfast_round(api: Api, batch: int) -> Round:
    async def one(number: int) -> None:
        queue = f"/queues/bench-{number}"
        await api.post(f"{queue}/tasks", {"tasks": [{"payload": PAYLOAD}] * batch})
        body = {"worker_id": f"w{number}", "max": batch}
        tasks = json.loads(await api.post(f"{queue}/acquire", body))["tasks"]
        held = [{"task_id": task["task_id"], "token": task["token"]} for task in tasks]
        done = json.loads(await api.post(f"{queue}/complete", {"worker_id": f"w{number}", "tasks": held}))
        if done["completed"] != batch:
            raise RuntimeError(f"{done['completed']} of {batch} tasks were completed")

    return one


def redis_ends(received: bytearray) -> int:
    """An answer of one line, or of one text with its length before it."""
    line = received.find(b"\r\n")
    if line < 0 or received[:1] != b"$":
        return line + 2 if line >= 0 else 0
    end = line + 2 + max(0, int(received[1:line])) + 2
    return end if len(received) >= end else 0


def redis_round(wires: list[Wire], batch: int) -> Round:
    serial = iter(range(1 << 60))

    async def one(number: int) -> None:
        ready, taken, wire = f"ready-{number}", f"taken-{number}", wires[number]
        items = [f"{next(serial)}:{PAYLOAD}" for _ in range(batch)]
        await wire.ask(spoken("LPUSH", ready, *items))
        answer = await wire.ask(spoken("EVAL", ACQUIRE, "2", ready, taken, str(VISIBLE_S), str(batch)))
        got = json.loads(answer.partition(b"\r\n")[2])
        if await wire.ask(spoken("ZREM", taken, *got)) != f":{batch}\r\n".encode():
            raise RuntimeError("Redis did not hand out or forget all of them")

    return one


def spoken(*words: str) -> bytes:
    parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    return f"*{len(words)}\r\n{''.join(parts)}".encode()


async def throughput(cluster: Up, directory: Path, seconds: float, progress: Progress) -> dict[str, Any]:
    """Both in turns, level by level, so that whatever else the machine does is shared."""
    api = Api(cluster)
    for number in range(max(clients for clients, _ in LEVELS)):
        rules = {"retention_ms": 0, "lease_ms": VISIBLE_S * 1000}
        await api.call("PUT", f"/api/v1/queues/bench-{number}", rules)
    redis = Redis(directory, synced=True) if version() is not None and shutil.which("redis-cli") else None
    found: dict[str, Any] = {"redis_version": version(), "holdfast": {}, "redis": {}}
    try:
        for clients, batch in LEVELS:
            name = f"{clients} at once, {batch} in a batch"
            rounds = {"holdfast": holdfast_round(api, batch)}
            if redis is not None:
                wires = [await connect(("127.0.0.1", redis.port), redis_ends) for _ in range(clients)]
                rounds["redis"] = redis_round(wires, batch)
            for system, one in rounds.items():
                await repeat(clients, seconds / 4, one)
                figures = summary(await repeat(clients, seconds, one), clients, batch)
                found[system][name] = figures
                times = f"p50 {figures['p50_ms']:>8.2f} ms  p99 {figures['p99_ms']:>8.2f} ms"
                progress(f"{system + ', ' + name:<40} {figures['per_second']:>10,.0f} tasks/s  {times} a round")
    finally:
        api.close()
        if redis is not None:
            redis.close()
    return found


# --- what came out ----------------------------------------------------------------------------------------------------


def goals(steady: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        least_goal("times fewer needless migrations with debounce", steady["cut"]["debounce"], CUT_GOAL),
        goal("times the recovery time with debounce", steady["slower"]["debounce"], SLOWER_GOAL),
    ]


def tell_thrash(name: str, found: dict[str, Any], progress: Progress) -> None:
    progress(f"thrash, {name}: leases of {found['lease_beats']} beats, debounce of {found['debounce_beats']}")
    for policy in thrash.policies(found["lease_beats"], found["debounce_beats"]):
        rows = found[policy.name]
        shown = "  ".join(
            f"{loss}: {row['needless_migrations']:>4} {row['recovery_mean_s']:>5.1f} s" for loss, row in rows.items()
        )
        progress(f"  {policy.name:<22} {shown}")


def write(result: dict[str, Any], into: Path) -> None:
    (into / "dispatch.json").write_text(json.dumps(result, indent=1) + "\n")
    for name in ("steady", "hasty"):
        found = result["thrash"][name]
        kinds = [policy.name for policy in thrash.policies(found["lease_beats"], found["debounce_beats"])]
        losses = list(found[kinds[0]])
        moves = {kind: [found[kind][loss]["needless_migrations"] for loss in losses] for kind in kinds}
        title = f"Needless migrations in {found['seconds']:g} s of {thrash.TASKS} tasks, by lost beats"
        charts.grouped_bars(into / f"dispatch_thrash_{name}.svg", title, "moves", losses, moves)
        times = {kind: [found[kind][loss]["recovery_mean_s"] for loss in losses] for kind in kinds}
        title = f"Seconds from a death to the next owner, beats of {thrash.BEAT_MS} ms"
        charts.grouped_bars(into / f"dispatch_recovery_{name}.svg", title, "s", losses, times)
    figures = result["throughput"]
    systems = [system for system in ("holdfast", "redis") if figures[system]]
    groups = [name.replace(", ", "\n") for name in figures["holdfast"]]
    series = {system: [row["per_second"] for row in figures[system].values()] for system in systems}
    cores = result["machine"]["cores"]
    charts.grouped_bars(
        into / "dispatch_per_second.svg", f"Tasks a second, end to end ({cores} cores)", "tasks/s", groups, series
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Tasks end to end, and needless migrations under jittery heartbeats.")
    parser.add_argument("--quick", action="store_true", help="about a minute; results go to a new directory")
    options = parser.parse_args()

    def progress(line: str) -> None:
        print(line, flush=True)

    seconds, simulated, deaths = (1.0, {STEADY: 300.0, HASTY: 60.0}, 1)
    if not options.quick:
        seconds, simulated, deaths = (8.0, {STEADY: 1_800.0, HASTY: 300.0}, 5)
    result: dict[str, Any] = {"machine": machine.describe(), "quick": options.quick, "thrash": {}}
    for name, beats in (("steady", STEADY), ("hasty", HASTY)):
        result["thrash"][name] = thrash.experiment(*beats, simulated[beats], deaths)
        tell_thrash(name, result["thrash"][name], progress)
    with tempfile.TemporaryDirectory(prefix="holdfast-dispatch-") as directory, up(Path(directory) / "data") as cluster:
        result["throughput"] = uvloop.run(throughput(cluster, Path(directory) / "redis", seconds, progress))
    result["goals"] = [] if options.quick else goals(result["thrash"]["steady"])
    tell_goals(result["goals"], progress)
    into = results_directory(quick=options.quick)
    write(result, into)
    progress(f"written to {into}")


if __name__ == "__main__":
    main()
