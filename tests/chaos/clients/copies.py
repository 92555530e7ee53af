"""Things that live and die and live again under the same names, and holders of copies of them (I14).

A holder has its copies and its state on disk: one that is killed, and started again when something has died meanwhile,
finds its copies there and must not serve what is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from functools import partial

from coordinator.client import HoldfastError, ReclaimItem
from tests.chaos.clients.work import Work

PROVIDER = "originals"
NAMES = tuple(f"copied/{number}" for number in range(4))
TURN_S = 0.4
LIFE_TURNS = 4


async def undertaker(work: Work) -> None:
    """Each thing is made, lives for some turns so that it is copied, and is deleted; then made again once it may be."""
    turns = dict[str, int]()

    async def remove(item: ReclaimItem) -> None:
        work.recorder.note("removed", name=item.resource_id)

    removing = asyncio.ensure_future(work.client.reclaim_worker(PROVIDER, remove))
    while not work.settle.is_set():
        name = work.rng.choice(NAMES)
        turns[name] = turns.get(name, 0) + 1
        with work.telling("graph"):
            if turns[name] == 1:
                # Refused while a tombstone stands: then it is tried again in a later turn.
                turns[name] = 0
                await work.client.resources.register(name, provider=PROVIDER, kind="copied", pinned=True)
                work.recorder.note("born", name=name)
                turns[name] = 1
            elif turns[name] > LIFE_TURNS:
                await _bury(work, name)
                turns[name] = 0
        await work.pause(TURN_S, work.settle)
    for name in NAMES:
        with work.telling("graph"):
            await _bury(work, name)
    work.recorder.note("settled")
    await work.stop.wait()
    removing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await removing


async def _bury(work: Work, name: str) -> None:
    await work.client.resources.delete(name, force=True)
    work.recorder.note("buried", name=name)


async def copier(work: Work) -> None:
    """Copies all that there is, and says all the time what it serves. Named by its kind: its files outlive it."""
    who = work.name
    path, state_file = work.directory / f"{who}.copies", work.directory / f"{who}.state"
    copies: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def stored() -> None:
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(copies))
        os.replace(beside, path)

    def drop(name: str, incarnation: str) -> None:
        if copies.get(name) == incarnation:
            del copies[name]
            stored()
            work.recorder.note("dropped", holder=who, name=name, incarnation=incarnation)

    async def fetch(name: str, incarnation: str) -> None:
        work.recorder.note("kept", holder=who, name=name, incarnation=incarnation)
        if (former := copies.get(name)) not in (None, incarnation):
            work.recorder.note("kept_over", holder=who, name=name, incarnation=former)
        copies[name] = incarnation
        stored()

    holder = work.client.holder(who, drop, copies=lambda: dict(copies), state_file=state_file)
    work.recorder.note("holder_starts", holder=who, copies=copies)
    while not work.stop.is_set():
        try:
            async with holder:
                while not work.stop.is_set():
                    if holder.serving:
                        work.recorder.note("serves", holder=who, copies=copies)
                        with work.telling("copy"):
                            async for each in work.client.resources.list(prefix="copied/", provider=PROVIDER):
                                if each.state not in ("reclaiming", "dead") and each.resource_id not in copies:
                                    await holder.keep(each.resource_id, partial(fetch, each.resource_id))
                    await work.pause(TURN_S)
        except HoldfastError as error:
            work.recorder.note("refused", kind="copy", error=type(error).__name__, began=0.0, text=str(error))
            await work.pause(TURN_S)
