"""A node that reads its data directory: it answers all the while, a signal ends it, and damage is told and final."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import msgpack
import pytest

from cluster.disk import RealDisk
from cluster.host import EXIT_BROKEN
from cluster.journal import Journal
from cluster.options import MIB
from cluster.snapshotfile import SnapshotParser, encode_snapshot
from coordinator.node import EXIT_FAILED
from tests.ports import free_address
from tests.processes.fleet import ROOT
from tests.waiting import wait_until

ENTRIES = 150_000
NO_OP, BATCH = b"\1", b"\0b"
OPENING = "not_ready: the node is starting"
DEADLINE_S = 120.0
TURNS = 3
"""What is compared with the time that something else took is looked at so often: a machine may be busy in between."""


class LoneNode:
    """`holdfast node`, a cluster of its own."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        http, peer = free_address(), free_address()
        self._base = f"http://{http}"
        self._log = directory / "node.log"
        self._config = directory / "node.toml"
        self._config.write_text(
            f'node_id = "n1"\ncluster_id = "opening"\ndata_dir = "{self.data}"\nhttp = "{http}"\npeer = "{peer}"\n'
            'secret = "a secret of this test"\n\n'
            f'[[members]]\nid = "n1"\npeer = "{peer}"\nhttp = "{http}"\n'
        )

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", "node", "--config", str(self._config)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def log(self) -> str:
        return self._log.read_text()

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        """The status and, of an error, its code and message. (0, …) while nobody listens."""
        try:
            with urllib.request.urlopen(self._base + path, body, timeout=DEADLINE_S) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            with error:
                said = json.load(error)["error"]
            return error.code, f"{said['code']}: {said['message']}"
        except OSError as error:
            return 0, str(error)

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.ask("/readyz")[0] == 200, DEADLINE_S, "the node to be ready")

    def write_log(self, entries: int) -> None:
        """A log as this node would have written it, of batches without a command."""
        journal = Journal(RealDisk(), f"{self.data}/log", identity=b"opening/n1")
        journal.setCurrentTerm(1, "n1")
        journal.add(NO_OP, 1, 1)
        body = BATCH + msgpack.packb([1, []])
        for index in range(2, entries + 1):
            journal.add(body, index, 1)
        journal.sync()
        journal._destroy()


@dataclass(slots=True)
class Opening:
    """How a node was seen to open, from the moment its port was there."""

    node: LoneNode
    answers: int = 0
    silence_s: float = 0.0
    """The longest time between two answers."""
    read_s: float = 0.0
    ready_s: float = 0.0


@pytest.fixture(scope="module")
def opening(tmp_path_factory: pytest.TempPathFactory) -> Opening:
    """A node with a long log, asked for its health from its start until it has read and applied it all."""
    node = LoneNode(tmp_path_factory.mktemp("opening"))
    node.write_log(ENTRIES)
    return opened(node)


def opened(node: LoneNode) -> Opening:
    seen = Opening(node)
    with node.running() as process:
        began = last = time.monotonic()
        for path in cycle(("/healthz", "/readyz")):
            status, said = node.ask(path)
            now = time.monotonic()
            if status == 0:
                assert process.poll() is None, node.log()
                began = last = now
                continue
            assert status == 200 or path == "/readyz", said
            seen.ready_s, seen.silence_s, last = now - began, max(seen.silence_s, now - last), now
            if said.startswith(OPENING):
                seen.answers, seen.read_s = seen.answers + 1, now - began
            elif path == "/readyz" and status == 200:
                break
    return seen


def test_healthz_answers_while_a_long_log_is_read_and_applied(opening: Opening) -> None:
    assert opening.answers > 10
    seen = [opening]
    while seen[-1].silence_s >= seen[-1].ready_s / 3:
        assert len(seen) < TURNS, seen
        seen.append(opened(opening.node))


def test_until_then_every_route_says_why_and_a_signal_ends_the_node_at_once(opening: Opening) -> None:
    took_s: list[float] = []
    while not took_s or took_s[-1] >= opening.read_s / 2:
        assert len(took_s) < TURNS, (took_s, opening)
        took_s.append(ended_while_it_opens(opening.node))


def ended_while_it_opens(node: LoneNode) -> float:
    """How long it took to end."""
    with node.running() as process:
        wait_until(lambda: OPENING in node.ask("/readyz")[1], DEADLINE_S, "the node to listen", poll_s=0.001)
        for path in ("/readyz", "/api/v1/cluster", "/api/v1/locks/a", "/api/v1/telemetry", "/metrics"):
            status, said = node.ask(path)
            assert (status, said.startswith(OPENING)) == (503, True), (path, said)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, node.log()
        took_s = time.monotonic() - asked
    assert "node_stopped code=0" in node.log()
    return took_s


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> LoneNode:
    """A node that has been in use, with a snapshot; killed."""
    node = LoneNode(tmp_path_factory.mktemp("used"))
    with node.running():
        node.wait_until_ready()
        assert node.ask("/api/v1/cluster/snapshot?timeout_ms=60000", b"{}")[0] == 200
    return node


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("identity", "RecordFileCorrupt: "),
        ("members", "RecordFileCorrupt: "),
        ("log/*.wal", "JournalCorrupt: "),
        ("snapshots/*.snap", "SnapshotCorrupt: "),
    ],
)
def test_a_flipped_bit_keeps_the_node_from_starting(used: LoneNode, tmp_path: Path, pattern: str, told: str) -> None:
    node = LoneNode(tmp_path)
    shutil.copytree(used.data, node.data)
    (path,) = node.data.glob(pattern)
    content = bytearray(path.read_bytes())
    content[10] ^= 4
    path.write_bytes(content)
    _assert_refused(node, path, EXIT_FAILED, told)


def test_damage_deep_in_a_snapshot_ends_the_node_too(used: LoneNode, tmp_path: Path) -> None:
    """Past the piece that is looked at first, while the machine is being restored."""
    node = LoneNode(tmp_path)
    shutil.copytree(used.data, node.data)
    (path,) = node.data.glob("snapshots/*.snap")
    parser = SnapshotParser(b"opening", str(path))
    parser.feed(path.read_bytes())
    content = bytearray(b"".join(encode_snapshot(b"opening", parser.finish(), [bytes(2 * MIB)])))
    content[-1] ^= 4
    path.write_bytes(content)
    _assert_refused(node, path, EXIT_BROKEN, "the snapshot cannot be loaded: ")


@pytest.mark.parametrize("name", ["identity", "members"])
@pytest.mark.parametrize("kept", [0, 10])
def test_a_file_cut_short_keeps_the_node_from_starting(used: LoneNode, tmp_path: Path, name: str, kept: int) -> None:
    node = LoneNode(tmp_path)
    shutil.copytree(used.data, node.data)
    path = node.data / name
    path.write_bytes(path.read_bytes()[:kept])
    _assert_refused(node, path, EXIT_FAILED, "RecordFileCorrupt: ")


def _assert_refused(node: LoneNode, path: Path, code: int, told: str) -> None:
    with node.running() as process:
        assert process.wait(DEADLINE_S) == code, node.log()
    assert f"{told}{path} is damaged" in node.log()
    assert "holdfast member replace" in node.log()
