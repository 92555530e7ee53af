"""A hundred thousand leases that expire in the same moment, and what renewals feel meanwhile: `python -m bench.expiry`.

Renewals of other leases go on at a fixed rate. No peer takes part: members of a sorted set of Redis do not expire, and
etcd has no renewal that could be sent in batches meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import Any

from bench.holdfast import holdfast
from bench.load import PACKED, Api
from bench.paced import Asked, Http, Pacer
from bench.part import Result, Setting, main
from bench.renewing import HEADERS, Leases
from bench.rounds import OURS, Figures, Turn, row
from bench.wire import request

DYING, ALIVE = 100_000, 50_000
BATCH, PER_SECOND, SECONDS = 1_000, 100, 1.0
LIFE_MS, DUE_MS = 25_000, 26_000
"""What they get when they are acquired, one batch after the other; and then all at once, to be due together."""
POLL_S = 0.05
MOST_S = 120

Span = tuple[float, float]


class Mass:
    """The leases that die, and the count of those that are left."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def acquire(self, count: int) -> None:
        """All are due in the same millisecond, DUE_MS from now."""
        packed = []
        for first in range(0, count, 2_000):
            names = [f"dying-{number}" for number in range(first, min(first + 2_000, count))]
            body = {"client_id": "bench", "lease_duration_ms": LIFE_MS, "resource_ids": names}
            packed.append(await self._api.load("/leases/acquire-batch", body, headers={"Accept": PACKED}))
        headers = {**HEADERS, "X-Holdfast-Extend-Ms": str(DUE_MS)}
        answer = json.loads(await self._api.post("/heartbeats", b"".join(packed), headers=headers))
        if answer["renewed"] != count:
            raise RuntimeError(f"only {answer['renewed']} of {count} leases lived until all were acquired")

    async def dead(self, left: int) -> Span:
        """When the first was seen to have expired, and the last."""
        before = (await self._api.telemetry())["active_leases"]
        first, end = 0.0, time.monotonic() + MOST_S
        while time.monotonic() < end:
            active = (await self._api.telemetry())["active_leases"]
            if not first and active < before:
                first = time.monotonic()
            if active <= left:
                return first, time.monotonic()
            await asyncio.sleep(POLL_S)
        raise TimeoutError(f"leases are still active after {MOST_S} s")


async def rounds_of(pacer: Pacer, asked: Asked, until: asyncio.Event) -> list[tuple[Span, Figures]]:
    found = []
    while not until.is_set():
        began = time.monotonic()
        figures = await asyncio.to_thread(pacer.run, asked)
        found.append(((began, time.monotonic()), figures))
    return found


async def measure(setting: Setting) -> Result:
    dying, pacer = setting.amount(DYING, 10_000), Pacer()
    try:
        with holdfast(setting.place("holdfast")) as cluster:
            api = Api(cluster)
            leases, mass = Leases(api, setting.progress), Mass(api)
            alive = setting.amount(ALIVE, 5_000)
            await leases.grow(alive)
            made = request("POST", "/api/v1/heartbeats", leases.heartbeats(BATCH).bodies[: 8 * BATCH], HEADERS)
            asked = Asked(api.addresses[0], Http, (made,), PER_SECOND, SECONDS)
            await leases.settle()
            await mass.acquire(dying)
            over = asyncio.Event()
            renewing = asyncio.create_task(rounds_of(pacer, asked, over))
            try:
                span = await mass.dead(alive)
            finally:
                over.set()
                rounds = await renewing
            return _result(setting, dying, rounds, span, lambda: api.pids)
    finally:
        pacer.close()


def _result(setting: Setting, dying: int, rounds: list[tuple[Span, Figures]], dead: Span, pids: Any) -> Result:
    before = [figures for (_, end), figures in rounds if end < dead[0]]
    during = [figures for (begin, end), figures in rounds if begin <= dead[1] and end >= dead[0]]
    kind = f"renewals x{BATCH:,} at {PER_SECOND}/s"
    told = {"generator": "Python, paced by select"}
    result = Result()
    for what, figures in ((f"{kind}, before", before), (f"{kind}, {dying:,} leases expire", during)):
        result.rows.append(row(Turn(what, OURS, dict, pids, told), figures))
    p99_before, p99_during = (statistics.median(each["p99_ms"] for each in some) for some in (before, during))
    took_s = max(dead[1] - dead[0], POLL_S)
    result.figures = {
        "expired": dying,
        "seconds_to_expire_all": round(took_s, 2),
        "expired_a_second": round(dying / took_s),
        "renewal_p99_ms_before": round(p99_before, 2),
        "renewal_p99_ms_during": round(p99_during, 2),
        "during_by_before": round(p99_during / p99_before, 2),
        "rounds_before": len(before),
        "rounds_during": len(during),
    }
    setting.progress(f"  {result.figures}")
    result.notes = [f"The clients are asked every {POLL_S * 1e3:.0f} ms how many are left, which costs a little too."]
    return result


if __name__ == "__main__":
    main("expiry", __doc__, measure, rounds=1)
