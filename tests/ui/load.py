"""The dashboard with millions of leases behind it: `python -m tests.ui.load --leases 5000000`.

A cluster of three nodes is filled, then Chromium opens every view of the page on the leader. Told is, by view, what
each request took at the node, and the longest stall of the leader's event loop meanwhile, and with no page open.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.holdfast import holdfast
from bench.load import DAY_MS, Api, at_once
from bench.probe import Probe
from bench.renewing import Leases
from tests.ui.browser import Page, browsing

OWNED, EACH = 20, 10_000
LOCKS, KEYS = 50_000, 50
LOOKED_S = 8.0
TAKEN = """
performance.getEntriesByType('resource').filter((each) => each.initiatorType === 'fetch')
  .map((each) => [each.name, each.responseStart - each.requestStart, each.transferSize])
"""
SETTLED = "!/Asking|Looking through/.test(document.querySelector('main').innerText)"


async def fill(cluster: Any, count: int) -> tuple[Api, str]:
    """The cluster's nodes, and the id of a lease in the middle."""
    api = Api(cluster)
    leases = Leases(api, print)
    owned = min(OWNED * EACH, count // 10) // OWNED
    await leases.grow(count - OWNED * owned)
    await leases.own_by_sessions(OWNED, owned)
    locks = max(KEYS, LOCKS * count // 5_000_000)

    async def hold(start: int) -> None:
        keys = [f"lock/{number:06}" for number in range(start, start + KEYS)]
        body = {"lock_keys": keys, "client_id": f"holder-{start}", "lease_time_ms": DAY_MS}
        await api.load("/locks/acquire-many", body)

    await at_once((hold(start) for start in range(0, locks, KEYS)), 8)
    await leases.settle()
    on_one = json.loads(await api.get(f"/leases?resource=resource-{count // 2}&limit=1"))
    lease_id: str = on_one["leases"][0]["lease_id"]
    return api, lease_id


def views(count: int, lease_id: str) -> dict[str, str]:
    return {
        "overview": "overview", "locks": "locks", "locks that begin so": "locks?prefix=lock/0499",
        "one lock": "locks?key=lock/000100", "leases": "leases", "one lease": f"leases?find={lease_id}",
        "leases on one resource": f"leases?find=resource-{count // 2}", "a rare beginning": "leases?find=owned-7-99",
        "no such beginning": "leases?find=nowhere-", "sessions": "sessions", "resources": "graph",
        "resources that begin so": "graph?prefix=nowhere-", "suspects": "graph?state=suspect",
        "around one resource": f"graph?id=resource-{count // 2}", "clean-ups": "reclaims", "queues": "queues",
        "tombstones": "tombstones", "events": "events",
    }  # fmt: skip


def look(page: Page, probe: Probe, name: str, fragment: str, looked_s: float) -> None:
    page.value("performance.clearResourceTimings()")
    asyncio.run(probe.taken())
    page.view(f"#/{fragment}")
    page.wait_for(f"document.querySelector('main .panel') && {SETTLED}", fragment, 300)
    page.value(f"new Promise((seen) => setTimeout(() => seen(1), {looked_s * 1000:.0f}))")
    felt = asyncio.run(probe.taken()).figures()
    slowest: dict[str, tuple[int, float, int]] = {}
    for address, took, size in page.value(TAKEN):
        path = urlsplit(address).path
        number, longest, largest = slowest.get(path, (0, 0.0, 0))
        slowest[path] = number + 1, max(longest, took), max(largest, size)
    print(f"{name}: longest stall {felt['longest_stall_ms']} ms, of /healthz 99 % {felt['healthz_p99_ms']} ms")
    for path, (number, longest, largest) in sorted(slowest.items(), key=lambda each: -each[1][1]):
        print(f"    {number:4} x {path:60} longest {longest:7.1f} ms, largest {largest:8,} B", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--leases", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=LOOKED_S, help="at each view, and before any (%(default)s)")
    options = parser.parse_args()
    count: int = options.leases
    with tempfile.TemporaryDirectory(prefix="hf-load-", dir="/tmp") as directory, holdfast(Path(directory)) as cluster:
        api, lease_id = asyncio.run(fill(cluster, count))
        probe = Probe(api.addresses[0], api.addresses[0])
        try:
            idle = asyncio.run(probe.watch(options.seconds)).figures()
            told = f"longest stall {idle['longest_stall_ms']} ms, of /healthz 99 % {idle['healthz_p99_ms']} ms"
            print(f"no page: {told}", flush=True)
            with browsing() as page:
                page.look(1280, 860)
                page.go("http://{}:{}/ui/".format(*api.addresses[0]))
                page.wait_for_text("#connection", "live", 60)
                page.value("performance.setResourceTimingBufferSize(10_000)")
                for name, fragment in views(count, lease_id).items():
                    look(page, probe, name, fragment, options.seconds)
                print(f"complaints of the page: {page.complaints}")
        finally:
            probe.close()


if __name__ == "__main__":
    main()
