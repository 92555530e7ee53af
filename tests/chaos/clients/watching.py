"""The events of locks, leases and tombstones, as a watch tells them: each once and in the order of the log."""

from __future__ import annotations

import asyncio
import contextlib

from coordinator.client import Compacted
from tests.chaos.clients.work import Work

KINDS = (
    "lock_granted", "lock_released", "lock_expired", "lock_broken",
    "lease_acquired", "lease_released", "lease_expired", "wait_begun", "wait_expired", "wait_cancelled",
    "tombstone_created", "tombstone_purged",
)  # fmt: skip
PATIENCE_S = 600.0


async def watcher(work: Work) -> None:
    watching = asyncio.ensure_future(_watch(work))
    over = asyncio.ensure_future(work.stop.wait())
    await asyncio.wait({watching, over}, return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def _watch(work: Work) -> None:
    first = 1
    while True:
        try:
            async for event in work.client.watch(kinds=KINDS, from_revision=first, patience=PATIENCE_S):
                work.recorder.note(
                    "event", kind=event.kind, revision=event.revision, key=event.key, owner=event.owner,
                    lease_id=event.lease_id, token=event.fencing_token, waiter=event.waiter_id,
                    incarnation=event.incarnation,
                )  # fmt: skip
        except Compacted as gone:
            # A node that was brought up to date by a snapshot has no events from before it.
            first = gone.revision
            work.recorder.note("gap", revision=first)
