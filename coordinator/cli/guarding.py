"""A command with a warden, as the process sees it that renews what the command runs under."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

FEED_S = 0.05
"""The warden is told so often until when it is safe."""

Terms = Mapping[str, float]
"""`doubt_at`: when SIGTERM is due; `kill_at`: when SIGKILL is. By the clock of `warden.now`."""


class Guarded:
    """Tells the warden, and hears how the command ended."""

    def __init__(self, link: socket.socket, reported: socket.socket) -> None:
        self._link, self._reported = link, reported
        for each in (link, reported):
            each.settimeout(0)
        self.report: dict[str, Any] | None = None
        """What the warden said at the end."""
        self.killed = False
        """The warden was: the command went with it."""

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self._link.send(json.dumps(message).encode())
        except BlockingIOError:
            pass  # It is stopped or busy; what it knows already is earlier, and so safe.
        except OSError:
            pass  # It is gone: the read says so.

    async def see_through(
        self, environment: Mapping[str, str], terms: Callable[[], Terms], last: Callable[[], Mapping[str, Any] | None]
    ) -> None:
        """Starts the command and waits for its end. Cancelled, it sends the `last` message, and waits all the same."""
        self.send({"start": environment, **terms()})
        ended = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(self._reported, 4096))
        try:
            while not (await asyncio.wait({ended}, timeout=FEED_S))[0]:
                self.send(terms())
        except asyncio.CancelledError:
            if (message := last()) is not None:
                self.send(message)
            await ended
            raise
        finally:
            if ended.done() and not ended.cancelled():
                raw = ended.result()
                self.report, self.killed = json.loads(raw) if raw else None, not raw

    def close(self) -> None:
        self._link.close()
        self._reported.close()
