"""Whether the time of a refusal tells what there is: `python -m tests.security [SAMPLES]`. Measured, and so no test.

For each operation, requests about what is there and about what never was, alternately in an order drawn anew for each
pair, over HTTP, to a machine that is in this process, so that nothing but the work itself takes time. Shown is how
often the one took longer than the other (0.5: they cannot be told apart) and by how much the medians differ. The exit
code is 1 if one is beyond FAR: then look there. What is looked up for a refusal, which is where a difference would come
from, is tested in test_tenants_timing.py.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from typing import Any

import numpy as np

from coordinator.http.app import all_operations
from coordinator.http.needs import name_of
from tests.security.recording import RecordedDoor, recording
from tests.security.tenants import VICTIM, request_for, settle
from tests.security.test_tenants_timing import about, by_id

SAMPLES = 300
FAR = 0.1
CLOSED = [each for each in all_operations() if each.need.place != "open"]


async def compared(door: RecordedDoor, token: str, there: tuple[Any, ...], never: tuple[Any, ...], times: int) -> Any:
    """The chance that what is there takes longer, and the difference of the medians in microseconds."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        order = [0, 1]
        random.shuffle(order)
        for which in order:
            method, path, body, namespace, query = (there, never)[which]
            began = time.perf_counter()
            await door.ask(token, method, path, body, namespace, params=query)
            spent[which].append(time.perf_counter() - began)
    longer = float(np.mean(np.subtract.outer(spent[0], spent[1]) > 0))
    return longer, (statistics.median(spent[0]) - statistics.median(spent[1])) * 1e6


async def main(times: int) -> int:
    far = 0
    async with recording() as door:
        has = settle(door.host)
        foreign, beside = door.token(("other", "admin")), door.token((VICTIM, "admin", "b/"))
        bound = door.token((VICTIM, "write", "b/"), identity="bob", bound=True)
        for operation in CLOSED:
            method, path, body, query = request_for(operation, has)
            nowhere = path.replace(f"/{VICTIM}", "/nowhere")
            attempts = [("namespace", foreign, (method, path, body, VICTIM, query),
                         (method, nowhere, body, "nowhere", query))]  # fmt: skip
            if operation.need.keys:
                attempts.append(("key", beside, about(operation, has, "a"), about(operation, has, "z")))
            if operation.need.session or operation.need.lease:
                own = has.session_id if operation.need.session else has.lease_id
                never = by_id(operation, has, own, "00000000000000ff")
                attempts.append(("id", bound, by_id(operation, has, own, own), never))
            for what, token, there, never in attempts:
                longer, apart_us = await compared(door, token, there, never, times)
                far += abs(longer - 0.5) > FAR
                mark = " FAR" if abs(longer - 0.5) > FAR else ""
                print(
                    f"{name_of(operation.method, operation.path):<52} {what:<10} {longer:.3f} {apart_us:+8.1f} us{mark}"
                )
    return int(far > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES)))
