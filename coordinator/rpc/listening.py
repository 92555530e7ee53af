"""Staying on the port: the library's server can end by itself, and is then made anew on the same address."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from coordinator.clientlimits import LOOK_S
from coordinator.events import log_event

DRAIN_S = 5.0
PAUSE_S = 0.1
PAUSE_MAX_S = 2.0
CALM_S = 60.0
"""A server that lasted so long is followed by the next one at once. If it did not, there is a pause before that, each
time twice as long: whoever found out how to end it must not keep the node busy, nor fill its log."""


class Listening:
    """`make` gives a server that has the address and has not begun, or raises OSError."""

    def __init__(self, address: str, make: Callable[[], Any]) -> None:
        self._address = address
        self._make = make
        self._ended: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """OSError when the address cannot be had."""
        await self._begin()
        self._staying = asyncio.create_task(self._stay())

    async def stop(self) -> None:
        self._staying.cancel()
        await asyncio.gather(self._staying, return_exceptions=True)
        # A server whose loop broke may say so here as well: it is gone all the same, and others have to stop yet.
        await asyncio.gather(self._server.stop(DRAIN_S), *self._ended, return_exceptions=True)

    async def _begin(self) -> None:
        self._server = self._make()
        await self._server.start()

    async def _stay(self) -> None:
        pause_s = 0.0
        while True:
            began = time.monotonic()
            reason = await _end_of(self._server)
            pause_s = 0.0 if time.monotonic() - began >= CALM_S else _longer(pause_s)
            self._tell("grpc_ended", reason, pause_s)
            # On its connections calls may still be under way, while new ones are let in by the next server.
            ended = asyncio.create_task(self._server.stop(DRAIN_S))
            self._ended.add(ended)
            ended.add_done_callback(self._ended.discard)
            await asyncio.sleep(pause_s)
            pause_s = await self._begin_again(pause_s)
            log_event("grpc_listens_again", {"level": "warning", "listen": self._address})

    async def _begin_again(self, pause_s: float) -> float:
        while True:
            try:
                await self._begin()
                return pause_s
            except Exception as error:  # noqa: BLE001 - a port that stays closed is worse than any of them
                pause_s = _longer(pause_s)
                self._tell("grpc_failed", str(error), pause_s)
                await asyncio.sleep(pause_s)

    def _tell(self, event: str, reason: str, pause_s: float) -> None:
        effect = f"calls under way may be cut off; listening again in {pause_s:g} s"
        log_event(event, {"level": "error", "listen": self._address, "reason": reason, "effect": effect})


def _longer(pause_s: float) -> float:
    return min(max(PAUSE_S, 2 * pause_s), PAUSE_MAX_S)


async def _end_of(server: Any) -> str:
    """Asked again and again: a server whose loop broke says so to whoever asks, but wakes nobody who waits."""
    try:
        while await server.wait_for_termination(LOOK_S):
            pass
    except Exception as error:  # noqa: BLE001 - whatever it was that broke its loop, it is told
        return f"{type(error).__name__}: {error}"
    return "it was stopped"
