"""Look-ups at 1,000 a second on the leader and on a follower, next to etcd's range gets: `python -m bench.lookups`.

One lease and batches of a hundred; linearizable and bounded. Many short rounds, and the median of their p99: on a host
that others use too, one long round's p99 is the host's. And a provider's own check of a lease, which asks nobody.
"""

from __future__ import annotations

import json
import time
from typing import Any

from bench.etcd import Etcd
from bench.generators import Requests, grpc_frame, h2load, varint, wrk
from bench.holdfast import Holdfast, holdfast
from bench.load import DAY_MS, Api, goal
from bench.paced import Asked, Grpc, Http, Pacer
from bench.part import Chart, Result, Setting, main
from bench.rounds import OURS, Figures, Turn, in_turns, median
from bench.wire import Address, request
from coordinator.client import Client, LeaseVerifier

ROUNDS = 9
PER_SECOND = 1_000
BATCH, BATCHES_PER_SECOND = 100, 100
LEASES = 2_000
SECONDS = 1.0
KEY = b"bench"
RANGE = "etcdserverpb.KV/Range"
LINEARIZABLE = b"\x0a" + varint(len(KEY)) + KEY
"""A range of that one key."""
MANY_CLIENTS, CAPACITY_ROUNDS = 64, 3
CHECKS = 200_000
VERIFIED = 1_000
P99_GOAL_MS, CHECK_GOAL_US = 1.5, 5.0
BOUNDED = "consistency=bounded&max_staleness_ms=1000"


async def our_turns(api: Api, pacer: Pacer) -> list[Turn]:
    body = {"client_id": "bench", "lease_duration_ms": DAY_MS, "resource_ids": [f"leased-{n}" for n in range(LEASES)]}
    ids = json.loads(await api.load("/leases/acquire-batch", body))["lease_ids"]
    turns = []
    for node, place in enumerate(("leader", "follower")):
        for consistency in ("linearizable", "bounded"):
            query = BOUNDED if consistency == "bounded" else "consistency=linearizable"
            one = request("GET", f"/api/v1/leases/{ids[0]}?{query}")
            many = request("POST", f"/api/v1/leases/lookup?{query}", {"lease_ids": ids[:BATCH]})
            kinds = [("one lease", one, PER_SECOND)]
            kinds += [(f"{BATCH} leases", many, BATCHES_PER_SECOND)] if consistency == "linearizable" else []
            for kind, made, rate in kinds:
                asked = Asked(api.addresses[node], Http, (made,), rate, SECONDS)
                what = f"look-up of {kind}, {place}, {consistency}"
                turns.append(_turn(what, OURS, asked, pacer, lambda: api.pids))
                turns[-1].leader = lambda: api.pids[0]
    return turns


def etcd_turns(etcd: Etcd, pacer: Pacer) -> list[Turn]:
    """A range of one key; serializable is what etcd has for a read without a round trip, of no stated age."""
    etcd.ask(etcd.leader(), "/v3/kv/put", {"key": "YmVuY2g=", "value": "eA=="})
    serializable = LINEARIZABLE + b"\x38\x01"
    turns = []
    for place, address in (("leader", etcd.leader_address()), ("follower", etcd.follower_address())):
        for consistency, message in (("linearizable", LINEARIZABLE), ("bounded", serializable)):
            asked = Asked(address, Grpc, (RANGE, message), PER_SECOND, SECONDS)
            turns.append(
                _turn(f"look-up of one lease, {place}, {consistency}", "etcd", asked, pacer, lambda: etcd.pids)
            )
    return turns


async def capacity_turns(setting: Setting, api: Api, etcd: Etcd | None) -> list[Turn]:
    """As many as go, by generators in C: wrk for ours, h2load for etcd."""
    body = {"client_id": "bench", "lease_duration_ms": DAY_MS, "resource_ids": ["looked-up"]}
    [lease_id] = json.loads(await api.load("/leases/acquire-batch", body))["lease_ids"]
    made, turns = Requests(request("GET", f"/api/v1/leases/{lease_id}"), b"", 0), []
    asked = grpc_frame(LINEARIZABLE)
    for node, place in enumerate(("leader", "follower")):
        what = f"look-ups as fast as they go, {place}"

        def ours(node: int = node) -> Figures:
            seen = wrk(api.addresses[node], made, MANY_CLIENTS, setting.seconds)
            return {**seen, "operations": seen["requests"]}

        turns.append(Turn(what, OURS, ours, lambda: api.pids, {"generator": "wrk"}, lambda: api.pids[0]))
        if etcd is None:
            continue
        address = etcd.address((etcd.leader() + node) % 3)
        rate = h2load(address, RANGE, asked, 2_000, MANY_CLIENTS, 1)["per_second"]

        def theirs(address: Address = address, count: int = int(rate * setting.seconds)) -> Figures:
            seen = h2load(address, RANGE, asked, max(MANY_CLIENTS, count), MANY_CLIENTS, 1)
            return {"per_second": seen["per_second"], "operations": seen["requests"]}

        turns.append(Turn(what, "etcd", theirs, lambda: etcd.pids, {"generator": "h2load"}))
    return turns


def _turn(what: str, system: str, asked: Asked, pacer: Pacer, pids: Any) -> Turn:
    told = {"generator": "Python, paced by select", "offered_per_second": asked.per_second}
    return Turn(what, system, lambda: pacer.run(asked), pids, told)


async def verifier(cluster: Holdfast) -> dict[str, float]:
    """Nanoseconds of one check, one after the other in a loop whose own cost is taken off."""
    async with Client(cluster.endpoints, client_id="verified") as client:
        names = [f"verified/{number}" for number in range(VERIFIED)]
        body = {"client_id": "verified", "lease_duration_ms": DAY_MS, "resource_ids": names}
        await client.call("POST", "/leases/acquire-batch", body)
        async with LeaseVerifier(client, "verified/", ttl=60) as held:
            if not all(held.check(name, "verified") for name in names):
                raise RuntimeError("the verifier does not know the leases")
            asked = [names[number % VERIFIED] for number in range(CHECKS)]
            began = time.perf_counter_ns()
            for _ in asked:
                pass
            empty = time.perf_counter_ns() - began
            check, began = held.check, time.perf_counter_ns()
            for name in asked:
                check(name, "verified")
            return {"ns_a_check": round((time.perf_counter_ns() - began - empty) / CHECKS, 1), "checks": CHECKS}


async def measure(setting: Setting) -> Result:
    result = Result()
    etcd = Etcd(setting.place("etcd")) if setting.present.has("etcd") else None
    pacer = Pacer()
    try:
        with holdfast(setting.place("holdfast")) as cluster:
            api = Api(cluster)
            ours = await our_turns(api, pacer)
            theirs = {turn.what: turn for turn in (etcd_turns(etcd, pacer) if etcd else [])}
            mixed = [each for turn in ours for each in (turn, theirs.get(turn.what)) if each]
            result.rows = await in_turns(mixed, setting.rounds, setting.progress)
            fast = await capacity_turns(setting, api, etcd)
            result.rows += await in_turns(fast, min(CAPACITY_ROUNDS, setting.rounds), setting.progress)
            result.figures["lease_verifier"] = await verifier(cluster)
    finally:
        pacer.close()
        if etcd:
            etcd.close()
    result.goals = goals(result)
    paced = tuple(dict.fromkeys(row["what"] for row in result.rows if row["what"].startswith("look-up of one")))
    result.charts = [
        Chart("p99_ms", "Look-up at 1,000/s: p99 ms (median of rounds)", "ms", "p99_ms", paced),
        Chart("per_second", "Look-ups as fast as they go", "look-ups/s", "per_second"),
    ]
    result.notes = [
        f"{PER_SECOND:,} a second; batches of {BATCH}: {BATCHES_PER_SECOND} a second. Open loop, up to 64 connections.",
        "Where the generator itself is late at p99, the host was busy: the answers' p99 is then the host's, too.",
        "etcd is asked by gRPC, a range of one key; `bounded` is its serializable read, which states no bound.",
    ]
    return result


def goals(result: Result) -> list[dict[str, Any]]:
    found = []
    for place in ("leader", "follower"):
        p99 = median(result.rows, f"look-up of one lease, {place}, linearizable", "p99_ms")
        if p99 is not None:
            found.append(goal(f"P5 look-up p99 ms at {PER_SECOND:,}/s, {place}, linearizable", p99, P99_GOAL_MS))
    check_us = result.figures["lease_verifier"]["ns_a_check"] / 1e3
    found.append(goal("P5 LeaseVerifier, µs a check", check_us, CHECK_GOAL_US))
    return found


if __name__ == "__main__":
    main("lookups", __doc__, measure, rounds=ROUNDS)
