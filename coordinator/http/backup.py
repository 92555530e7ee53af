"""/api/v1/backup: the whole state at one revision, as a file. Any node gives it, and reads it on another thread."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from cluster.ports import Denied
from coordinator.backups import Writing, new_header
from coordinator.http import trail
from coordinator.http.errors import ApiError, from_outcome
from coordinator.http.keys import NODE
from coordinator.http.operations import Call, Operation

SLOW_S = 30.0
"""A reader that takes nothing for so long, with its buffers full, is cut off: what it reads must be kept for it."""
BACKUP = "application/octet-stream"


async def backup(call: Call) -> web.StreamResponse:
    service = call.service
    if service.backups.locked():
        message = "this node is giving a backup already; ask another node, or wait until it is done"
        raise ApiError(429, "backup_running", message, outcome="retry")
    async with service.backups:
        writing, revision = await _frozen(call)
        # Its steps run one after the other, also when this request is cancelled in the middle of one.
        with contextlib.closing(_Thread(writing)) as thread:
            await trail.begin(call, "cluster.backup", call.request.app[NODE].node_id)
            return await _send(call.streamed, thread, revision)


async def _frozen(call: Call) -> tuple[Writing, int]:
    """From the moment the read is answered up to the freeze nothing is awaited: the state is of that revision."""
    service, host = call.service, call.request.app[NODE].host
    point = await service.read("linearizable", 0, call.left_s)
    if isinstance(point, Denied):
        raise from_outcome(point)
    if host is None:
        raise ApiError(503, "stopping", "the node is stopping: ask another", outcome="retry")
    status = host.status()
    members = [member.id for member in status.members]
    header = new_header(status.cluster_id, point.revision, max(point.now_ms, service.machine.now_ms), members)
    return Writing(header, service.machine.freeze()), point.revision


class _Thread:
    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._pool = ThreadPoolExecutor(1, "backup")

    async def next_piece(self) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._writing.next_piece)

    def close(self) -> None:
        self._pool.submit(self._writing.close)
        self._pool.shutdown(wait=False)


async def _send(request: web.Request, thread: _Thread, revision: int) -> web.StreamResponse:
    name = f'attachment; filename="holdfast-{revision}.backup"'
    response = web.StreamResponse(headers={"Content-Type": BACKUP, "Content-Disposition": name})
    try:
        await response.prepare(request)
        while piece := await thread.next_piece():
            async with asyncio.timeout(SLOW_S):
                await response.write(piece)
        await response.write_eof()
    except (TimeoutError, ConnectionError):
        # Not to its end, and the reader must see that: no proper end of the answer either.
        if request.transport is not None:
            request.transport.abort()
    return response


def operations() -> list[Operation]:
    return [
        Operation(
            method="GET", tag="operations", path="/api/v1/backup", handler=backup, spaced=False, streams=True,
            about="A backup as of a linearizable revision. Every block of it and the whole are checksummed: "
            "`holdfast backup FILE` takes it and checks it, `holdfast restore FILE` begins a new cluster with it.",
            answers={200: {"type": "string", "format": "binary"}}, form=BACKUP, denials=(429,),
        ),
    ]  # fmt: skip
