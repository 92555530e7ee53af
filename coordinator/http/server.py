"""Listening: opens the HTTP port, and closes it without cutting off requests under way."""

from __future__ import annotations

from aiohttp import web

from coordinator.addresses import split_address

DRAIN_S = 5.0


class HttpServer:
    """One app on one address. `stop` refuses new connections at once and waits for the requests under way."""

    kind = "http"

    def __init__(self, app: web.Application, listen: str) -> None:
        self.listen = listen
        self._host, self._port = split_address("http", listen)
        # A closed connection cancels its request: a waiter whose client is gone must leave the queue.
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=DRAIN_S, handler_cancellation=True
        )

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, reuse_address=True).start()

    async def stop(self) -> None:
        await self._runner.cleanup()
