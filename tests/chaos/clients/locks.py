"""Locks with fencing: read under the lock, think, write what was read plus one. And one who sleeps in the middle."""

from __future__ import annotations

import asyncio
import os
import signal

from coordinator.client import StaleToken, clock
from tests.chaos.clients.work import Work

KEYS = ("account/0", "account/1")
TTL_S = 3.0
WAIT_S = 5.0
THINK_S = 0.1


async def writer(work: Work) -> None:
    while not work.settle.is_set():
        key = work.rng.choice(KEYS)
        with work.telling("lock"):
            async with work.client.lock(key, ttl=TTL_S, wait=WAIT_S) as held:
                work.acknowledged("lock")
                before = await asyncio.to_thread(work.store.read, key, held.token, work.name)
                await work.pause(work.rng.uniform(0, THINK_S))
                now = clock.now()
                work.recorder.note("held", key=key, token=held.token, until=now + held.valid_for)
                await asyncio.to_thread(work.store.write, key, held.token, work.name, before)
        await work.pause(work.rng.uniform(0, THINK_S))


async def sleeper(work: Work) -> None:
    """Stops itself with the lock in its hand. Resumed, it writes before the SDK can say anything: only the guard can.

    The crew resumes it when another has the lock and has been at the store.
    """
    while not work.settle.is_set():
        key = work.rng.choice(KEYS)
        with work.telling("lock"):
            async with work.client.lock(key, ttl=TTL_S, wait=WAIT_S) as held:
                before = work.store.read(key, held.token, work.name)
                # What runs out while it sleeps was promised until then, and not less (I4).
                now = clock.now()
                work.recorder.note("held", key=key, token=held.token, until=now + held.valid_for)
                work.recorder.note("asleep", key=key, token=held.token)
                os.kill(os.getpid(), signal.SIGSTOP)
                try:
                    work.store.write(key, held.token, work.name, before)
                    verdict = "accepted"
                except StaleToken:
                    verdict = "refused"
                work.recorder.note("awake", key=key, token=held.token, verdict=verdict, state=held.state)
        await work.pause(1.0)
