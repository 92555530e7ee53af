"""RenewLeases: a stream of renewals. What has arrived while the last ones were committed goes to the log together."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from coordinator.http.errors import ApiError, bad_request
from coordinator.http.moments import ttl_ms
from coordinator.machine.commands import Heartbeat
from coordinator.rpc.calls import REQUEST_IDS, TIMEOUT_S, Call
from coordinator.rpc.leases import DURATION, LEASE_ID, NAME, not_renewed, renewed

WAITING_MAX = 1_024
"""Requests of one stream that were read and are not under way; past it the stream is read no further."""


class Renewal(NamedTuple):
    lease_id: int
    client_id: str
    extend_ms: int


class Arrivals:
    """The requests of one stream that nobody has taken yet."""

    def __init__(self) -> None:
        self._waiting: list[Renewal] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self.stopped = False

    async def read(self, requests: AsyncIterator[Any]) -> None:
        """Until the client has sent its last, or a request that does not fit: that is raised."""
        number = 0
        try:
            async for request in requests:
                number += 1
                self._waiting.append(_renewal(request, f"request {number}: "))
                self._news.set()
                if len(self._waiting) >= WAITING_MAX:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self._ended = True
            self._news.set()

    async def take(self) -> list[Renewal]:
        """All there is, as soon as there is something. Empty when there will be nothing more."""
        while not self._waiting and not self._ended and not self.stopped:
            self._news.clear()
            await self._news.wait()
        taken, self._waiting = self._waiting, []
        self._room.set()
        return taken

    def stop(self) -> None:
        self.stopped = True
        self._news.set()


def _renewal(request: Any, where: str) -> Renewal:
    try:
        return Renewal(
            LEASE_ID.read("lease_id", request.lease_id),
            NAME.read("client_id", request.client_id),
            DURATION.read("extend_duration_ms", request.extend_duration_ms),
        )
    except ApiError as error:
        raise bad_request(where + error.message, **error.details) from None


class Renewals:
    """The streams of this node."""

    def __init__(self) -> None:
        self._streams: set[Arrivals] = set()

    def stop(self) -> None:
        """Every stream ends when what has arrived is answered."""
        for arrivals in self._streams:
            arrivals.stop()

    async def serve(self, call: Call, requests: AsyncIterator[Any], write: Callable[[Any], Awaitable[None]]) -> None:
        if call.request_id is not None:
            raise bad_request("a stream takes no request id: renewing twice does no harm", field=REQUEST_IDS[0])
        arrivals = Arrivals()
        self._streams.add(arrivals)
        reading = asyncio.ensure_future(arrivals.read(requests))
        try:
            while not arrivals.stopped and (taken := await arrivals.take()):
                for answer in await _renew(call, taken):
                    await write(answer)
            if arrivals.stopped:
                raise ApiError(503, "stopping", "this node is stopping: go on at another", outcome="retry")
            await reading
        finally:
            self._streams.discard(arrivals)
            reading.cancel()


async def _renew(call: Call, renewals: list[Renewal]) -> list[Any]:
    """One answer each, in their order; one command for each client and duration among them."""
    together: dict[tuple[str, int], list[int]] = {}
    for renewal in renewals:
        together.setdefault((renewal.client_id, renewal.extend_ms), []).append(renewal.lease_id)
    beats = [_beat(call, client_id, extend_ms, ids) for (client_id, extend_ms), ids in together.items()]
    left = dict(zip(together, await asyncio.gather(*beats), strict=True))
    answers = []
    for lease_id, client_id, extend_ms in renewals:
        left_ms, failed = left[client_id, extend_ms]
        answers.append(not_renewed() if lease_id in failed else renewed(left_ms))
    return answers


async def _beat(call: Call, client_id: str, extend_ms: int, lease_ids: list[int]) -> tuple[int, frozenset[int]]:
    """How long those live that were renewed, and which were not."""
    hidden = await call.allow(client_id, lease_ids=lease_ids)
    lease_ids = [number for number in lease_ids if number not in hidden]
    if not lease_ids:
        return 0, hidden
    command = Heartbeat(client_id, extend_ms, struct.pack(f"<{len(lease_ids)}Q", *lease_ids))
    committed = call.settled(await call.work(command, None, TIMEOUT_S))
    answer = committed.result
    failed = frozenset(struct.unpack(f"<{len(answer.verdicts)}Q", answer.failed_ids))
    return ttl_ms(answer.now_ms + extend_ms, committed.now_ms), failed | hidden
