"""Listening: opens the HTTP port, and closes it without cutting off requests under way."""

from __future__ import annotations

import ssl

from aiohttp import web

from coordinator.addresses import split_address
from coordinator.clientlimits import ClientLimits
from coordinator.http.door import Door

DRAIN_S = 5.0


class HttpServer:
    """One app on one address. `stop` refuses new connections at once and waits for the requests under way."""

    kind = "http"

    def __init__(
        self,
        app: web.Application,
        listen: str,
        tls: ssl.SSLContext | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        self.listen = listen
        self._limits = limits or ClientLimits()
        self._door: Door | None = None
        self._tls = tls
        self._host, self._port = split_address("http", listen)
        # A closed connection cancels its request: a waiter whose client is gone must leave the queue.
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=DRAIN_S, handler_cancellation=True
        )

    async def start(self) -> None:
        await self._runner.setup()
        if self._runner.server is not None:
            self._door = Door(self._runner.server, self._runner.app, self._limits, self._tls)
            await self._door.open(self._host, self._port)

    async def stop(self) -> None:
        if self._door is not None:
            await self._door.close()
        await self._runner.cleanup()
