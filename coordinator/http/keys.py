"""The keys under which the app keeps what its routes need."""

from __future__ import annotations

from aiohttp import web

from coordinator.http.ports import NodeView

NODE = web.AppKey("node", NodeView)
