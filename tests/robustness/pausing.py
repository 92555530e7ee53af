"""Real time that passes on purpose: how long a fault lasts, how soon a client asks again. Nothing is waited for so."""

from __future__ import annotations

import asyncio


async def pause(seconds: float) -> None:
    timer = asyncio.get_running_loop().create_future()
    handle = asyncio.get_running_loop().call_later(seconds, timer.set_result, None)
    try:
        await timer
    finally:
        handle.cancel()
