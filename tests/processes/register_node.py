"""One real process of the reference machine: `python -m tests.processes.register_node SPEC.json`.

Serves the registers over a small framed protocol, so that tests and benchmarks can drive `cluster` with nothing of
the product's HTTP layer in between: `[u32 length][msgpack [id, verb, arguments…]]`, answered by `[id, answer]`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import msgpack
import uvloop

from cluster.host import Host, PeerTls
from cluster.options import ClusterOptions, Limits, Timing
from cluster.ports import Committed, Member, Outcome, Unknown
from tests.reference.register import RegisterMachine


def _plain(outcome: Outcome) -> list[Any]:
    if isinstance(outcome, Committed):
        return ["committed", outcome.index, outcome.now_ms, outcome.result]
    kind = "unknown" if isinstance(outcome, Unknown) else "denied"
    return [kind, outcome.code, outcome.message]


class Session(asyncio.Protocol):
    """One client connection. Requests run side by side; answers carry the request's id."""

    def __init__(self, host: Host, machine: RegisterMachine, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._machine = machine
        self._loop = loop
        self._buffer = bytearray()
        self._transport: Any = None
        self._answers: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= 4:
            end = position + 4 + int.from_bytes(self._buffer[position : position + 4], "big")
            if len(self._buffer) < end:
                break
            self._serve(*msgpack.unpackb(memoryview(self._buffer)[position + 4 : end]))
            position = end
        del self._buffer[:position]

    def _serve(self, number: int, verb: str, *arguments: Any) -> None:
        node = self._host.node
        if verb == "propose":
            command, timeout = arguments
            node.propose(command, timeout, lambda outcome: self._answer(number, _plain(outcome)))
        elif verb == "read":
            key, timeout = arguments
            node.read_index(timeout, lambda index: self._answer(number, self._read(key, index)))
        elif verb == "status":
            status = node.status()
            self._answer(
                number,
                [status.leader, status.term, status.commit, status.applied, status.ready, self._machine.digest.hex()],
            )
        elif verb == "members":
            rows = [[held.id, held.role, held.pid, held.term, held.applied] for held in node.status().members]
            self._answer(number, rows)
        elif verb == "add":
            node.add_member(Member(*arguments), 5.0, lambda outcome: self._answer(number, _plain(outcome)))
        elif verb == "remove":
            node.remove_member(arguments[0], 5.0, lambda outcome: self._answer(number, _plain(outcome)))
        elif verb == "transfer":
            node.transfer(arguments[0], 5.0, lambda outcome: self._answer(number, _plain(outcome)))
        elif verb == "snapshot":
            node.snapshot(10.0, lambda outcome: self._answer(number, _plain(outcome)))

    def _read(self, key: str, index: Any) -> list[Any]:
        if isinstance(index, int):
            return ["ok", self._machine.values.get(key), index]
        return ["denied", index.code, index.message]

    def _answer(self, number: int, answer: list[Any]) -> None:
        body = msgpack.packb([number, answer])
        self._answers.append(len(body).to_bytes(4, "big") + body)
        if len(self._answers) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        answers, self._answers = self._answers, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(answers))


async def serve(spec: dict[str, Any]) -> None:
    if spec.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (spec["file_bytes"], spec["file_bytes"]))
    machine = RegisterMachine(**spec.get("machine", {}))
    options = ClusterOptions(
        node_id=spec["node_id"],
        cluster_id=spec["cluster_id"],
        data_dir=spec["data_dir"],
        members=tuple(Member(*row) for row in spec["members"]),
        timing=Timing(**spec.get("timing", {})),
        limits=Limits(**spec.get("limits", {})),
    )
    tls = PeerTls(*spec["tls"]) if spec.get("tls") else None
    host = await Host.open(options, machine, listen=spec["listen"], secret=spec["secret"].encode(), tls=tls)
    loop = asyncio.get_running_loop()
    name, port = spec["serve"].rsplit(":", 1)
    server = await loop.create_server(lambda: Session(host, machine, loop), name, int(port))
    await host.start()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    server.close()
    await host.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    uvloop.run(serve(json.loads(Path(sys.argv[1]).read_text())))
