"""Gossip nodes as real processes, as a person runs them, and a visitor that has their secret."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgpack

from coordinator.gossip.calling import Caller, CallFailed, once_name
from coordinator.gossip.seal import Seal
from tests.client.gate import Gate
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
SECRET = b"a secret of the gossip tests"
START_S = 60


class Links(Gate):
    """Hangs up also on whoever asks for a node that is down."""

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        try:
            await super()._pass(reader, writer, host, port)
        finally:
            writer.transport.abort()


class Member:
    """One node: its files, and its process while it runs."""

    def __init__(self, directory: Path, name: str, address: str, peers: list[str], round_ms: int = 60) -> None:
        self.name = name
        self.address = address
        self.config = directory / f"{name}.toml"
        self._log = directory / f"{name}.log"
        (directory / "secret").touch(0o600)
        (directory / "secret").write_bytes(SECRET)
        shown = ", ".join(f'"{peer}"' for peer in peers)
        self.config.write_text(
            f'node_id = "{name}"\nlisten = "{address}"\nfile = "{name}.db"\nsecret_file = "secret"\n'
            f"peers = [{shown}]\nround_ms = {round_ms}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", "gossip", "run", "--config", str(self.config)],
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
            )
        wait_until(self.status, START_S, f"{self.name} to answer; it said {self._log.read_text()[-2000:]}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        if self.process is None:
            return None
        self.process.send_signal(number)
        code = self.process.wait(timeout=90)
        self.process = None
        return code

    def ask(self, verb: str, *sent: Any) -> Any:
        raw = call(self.address, verb, msgpack.packb(list(sent), use_bin_type=True))
        return msgpack.unpackb(raw) if raw else None

    def status(self) -> dict[str, Any] | None:
        if self.process is None:
            return None
        try:
            seen: dict[str, Any] = self.ask("status")
            return seen
        except CallFailed:
            return None

    def has(self, record_id: str) -> str:
        """`record`, `tombstone`, `keeper`, nothing, or `away` when it does not answer."""
        seen = self.status()
        if seen is None:
            return "away"
        if record_id in seen["records"]:
            return "record"
        stone = seen["tombstones"].get(record_id)
        return "" if stone is None else "keeper" if stone["keeper"] else "tombstone"


def call(address: str, verb: str, body: bytes, name: str | None = None, secret: bytes = SECRET) -> bytes:
    async def asked() -> bytes:
        async with aiohttp.ClientSession() as session:
            return (await Caller(name or once_name(), Seal(secret), session).call(address, verb, lambda _: body))[1]

    return asyncio.run(asked())
