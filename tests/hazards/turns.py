"""Does the event loop go on while something takes long?"""

from __future__ import annotations

import asyncio
import threading


def stands_still(loop: asyncio.AbstractEventLoop, began: threading.Event, seconds: float) -> bool:
    """From another thread: once `began` is set, the loop takes no turn for that long."""
    began.wait(90)
    turned = threading.Event()
    loop.call_soon_threadsafe(turned.set)
    return not turned.wait(seconds)
