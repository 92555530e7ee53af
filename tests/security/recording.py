"""A door behind which it is written down what the machine is asked: what is not looked up cannot show in time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from coordinator.http.access import Gate
from coordinator.http.app import build_app
from coordinator.machine.machine import Machine
from coordinator.tokens import ROOT, digest_of, new_token
from tests.security.doorway import Door, view_of
from tests.service.lone import LoneHost

Trace = list[tuple[str, str]]


class Recorded:
    """The machine, and what it was asked: names and arguments, in order."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.trace: Trace = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._machine, name)
        if not callable(found):
            return found

        def asked(*arguments: Any, **named: Any) -> Any:
            self.trace.append((name, repr((arguments, named))))
            return found(*arguments, **named)

        return asked


class RecordedDoor(Door):
    recorded: Recorded

    async def traced(
        self, token: str, method: str, path: str, body: Any, namespace: str, query: dict[str, str]
    ) -> tuple[int, Any, Trace]:
        """Status and answer, and all that was looked up, read or proposed on the way."""
        self.recorded.trace.clear()
        self.host.proposed.clear()
        reads = self.host.reads
        status, answer = await self.ask(token, method, path, body, namespace, params=query)
        done = [("proposed", command.hex()) for command in self.host.proposed]
        caught_up = [("read", "")] * (self.host.reads - reads)
        return status, answer, [*self.recorded.trace, *caught_up, *done]


@asynccontextmanager
async def recording() -> AsyncIterator[RecordedDoor]:
    token, host = new_token(ROOT), LoneHost()
    view = view_of(host, Gate(digest_of(token)))
    assert view.service is not None
    recorded: Any = Recorded(host.replica.machine)
    view.service.machine = recorded
    async with TestClient(TestServer(build_app(view))) as client:
        door = RecordedDoor(host, client, token)
        door.recorded = recorded
        yield door
