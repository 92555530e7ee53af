"""A clean-up worker that dies by SIGKILL at a step: `python -m tests.client.cleanup ENDPOINTS PROVIDER DATABASE STEP`.

`claimed`: it has the item and has done nothing. `effect`: it has done it and not said so. `sent`: the cluster has its
acknowledgement, and it does not know. It takes only items whose kind is its step, and prints each before it dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coordinator.client import Client, ReclaimItem
from coordinator.client.calls import Answer, Calls
from tests.processes import ledger

STEPS = ("claimed", "effect", "sent")
CLAIM_S = 1.0


def clean(database: Path, item: ReclaimItem, worker_id: str) -> None:
    """Under the claim's token, and once, though one before may have died before it could say so."""
    with ledger.admitted(database, item.resource_id, item.token, worker_id) as connection:
        if connection.execute("SELECT 1 FROM effects WHERE number = ?", (item.resource_id,)).fetchone() is None:
            connection.execute("INSERT INTO effects VALUES (?, ?, ?)", (item.resource_id, item.token, worker_id))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingCalls(Calls):
    async def call(self, method: str, path: str, *args: Any, **named: Any) -> Answer:
        answer = await super().call(method, path, *args, **named)
        if path == "/reclaims/ack":
            _die()
        return answer


async def main(endpoints: str, provider: str, database: str, step: str) -> None:
    async def handler(item: ReclaimItem) -> None:
        print(json.dumps(asdict(item)), flush=True)
        if step == "claimed":
            _die()
        clean(Path(database), item, step)
        if step == "effect":
            _die()

    async with Client(endpoints, client_id=step) as client:
        client.calls.__class__ = DyingCalls
        await client.reclaim_worker(provider, handler, kinds=[step], claim=CLAIM_S, worker_id=step)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
