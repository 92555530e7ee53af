"""`holdfast doctor` on a healthy cluster, and on things that are wrong."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli import main
from coordinator.config import load_config
from coordinator.devcluster import Layout
from coordinator.doctor import Clocks, Finding, Host, file_system_of, of_cluster, of_host
from coordinator.endpoint import Endpoint
from tests.cli.processes import Up
from tests.ports import free_address

Findings = dict[str, dict[str, Any]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Findings]]:
    def run(*words: str) -> tuple[int, Findings]:
        capsys.readouterr()
        code = main(["doctor", *words, "--json"])
        return code, {each["what"]: each for each in json.loads(capsys.readouterr().out)["findings"]}

    return run


def test_a_healthy_cluster_has_nothing_to_mend(
    cluster: Up, at_cluster: dict[str, str], doctor: Callable[..., tuple[int, Findings]]
) -> None:
    _, found = doctor("--config", str(cluster.data / "n1.toml"))
    found.pop("disk speed")  # of a machine that is busy with tests
    found.pop("room")
    assert {"configuration", "data_dir", "clock", "n1", "n2 peer", "n3", "leader"} <= found.keys()
    assert [each for each in found.values() if each["verdict"] == "ill"] == []
    assert found["leader"]["verdict"] == "well"


def test_the_cluster_is_the_one_that_the_file_names(
    cluster: Up, doctor: Callable[..., tuple[int, Findings]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_ENDPOINTS", raising=False)
    _, found = doctor("--config", str(cluster.data / "n2.toml"))
    assert found["leader"]["verdict"] == "well", found
    assert f"127.0.0.1:{cluster.peer_base + 1} " in found["n1 peer"]["seen"]


def test_the_nodes_of_another_cluster_are_not_taken_for_those_of_the_file(
    cluster: Up, doctor: Callable[..., tuple[int, Findings]]
) -> None:
    config, lines = cluster.data / "other.toml", (cluster.data / "n1.toml").read_text().splitlines()
    other = "\n".join('cluster_id = "other"' if line.startswith("cluster_id") else line for line in lines)
    config.write_text(other)
    code, found = doctor("--config", str(config), "--endpoints", cluster.endpoint(1))
    assert (code, found["cluster"]["verdict"]) == (1, "ill")
    assert found["cluster"]["seen"].endswith("is of the cluster development, the file of other")


def test_what_is_wrong_is_said_with_what_to_do(
    cluster: Up, tmp_path: Path, doctor: Callable[..., tuple[int, Findings]]
) -> None:
    config, data = cluster.data / "doctor.toml", tmp_path / "open"
    data.mkdir(mode=0o755)
    lines = (cluster.data / "n1.toml").read_text().splitlines()
    config.write_text("\n".join(f'data_dir = "{data}"' if line.startswith("data_dir") else line for line in lines))
    code, found = doctor("--config", str(config), "--endpoints", free_address())
    assert code == 1
    assert found["configuration"]["verdict"] == "well", found
    assert (found["data_dir"]["verdict"], found["data_dir"]["do"]) == ("mind", f"chmod 700 {data}")
    assert found["cluster"]["verdict"] == "ill"
    assert "disk speed" in found
    assert list(data.iterdir()) == []


def test_a_configuration_that_is_refused_is_a_finding(
    tmp_path: Path, doctor: Callable[..., tuple[int, Findings]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "n1.toml").write_text('node_idd = "n1"')
    monkeypatch.delenv("HOLDFAST_ENDPOINTS", raising=False)
    code, found = doctor("--config", str(tmp_path / "n1.toml"))
    assert code == 1
    assert "node_id" in found["configuration"]["do"]
    assert "no endpoint" in found["cluster"]["seen"], "not some cluster that the file says nothing of"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/lib/holdfast/n1", "nfs4"), ("/var/libs", "ext4"), ("/var/lib", "nfs4"), ("/dev/shm/x", "tmpfs")],
)
def test_the_file_system_is_that_of_the_deepest_mount(path: str, kind: str) -> None:
    mounts = ["/dev/sda1 / ext4 rw 0 0", "host:/x /var/lib nfs4 rw 0 0", "tmpfs /dev/shm tmpfs rw 0 0"]
    assert file_system_of(Path(path), mounts) == kind


# --- an ill host ------------------------------------------------------------------------------------------------------


class Ill(Host):
    """A machine on which one thing is wrong."""

    def __init__(
        self, *, free: int = 1 << 50, sync_s: float = 0.001, refuses: int = 0, slept_s: float = 0.0, set_s: float = 0.0,
        fast: float = 0.0,
    ) -> None:  # fmt: skip
        self._free, self._sync_s, self._refuses, self._now_s = free, sync_s, refuses, 0.0
        self._slept_s, self._set_s, self._fast = slept_s, set_s, fast

    def space(self, path: Path) -> tuple[int, int]:
        return 1 << 50, self._free

    def sync_times_s(self, path: Path) -> list[float]:
        if self._refuses:
            raise OSError(self._refuses, os.strerror(self._refuses))
        return [0.001, 0.001, self._sync_s]

    def clocks(self) -> Clocks:
        slept_s, set_s = (self._slept_s, self._set_s) if self._now_s else (0.0, 0.0)
        steered_s = self._now_s * (1 + self._fast) + slept_s
        return Clocks(steered_s, self._now_s, 1e9 + steered_s + set_s)

    def pause(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.fixture
def seen(tmp_path: Path) -> Callable[[Host], dict[str, Finding]]:
    layout = Layout(tmp_path, 1, 7100, 7200)
    layout.write()
    config = load_config(layout.config_path("n1"), {})
    config.data_dir.mkdir(mode=0o700)
    return lambda host: {each.what: each for each in of_host(config, host)}


@pytest.mark.parametrize(
    ("host", "what", "verdict", "told", "do"),
    [
        (Ill(free=1 << 20), "room", "ill", "1 MiB free", "a node whose disk is full stops"),
        (Ill(free=1 << 46), "room", "mind", "free of", "before it is needed"),
        (Ill(sync_s=0.9), "disk speed", "ill", "took 900.0 ms", "a longer timing.election_min"),
        (Ill(refuses=errno.ENOSPC), "disk speed", "ill", "No space left", "make room"),
        (Ill(refuses=errno.EROFS), "disk speed", "ill", "Read-only", "holdfast member replace"),
        (Ill(refuses=errno.EIO), "disk speed", "ill", "nothing can be written", "dmesg"),
        (Ill(fast=0.02), "clock", "ill", "+20000 millionths", "a larger timing.drift"),
        (Ill(slept_s=7.0), "clock", "ill", "jumped by +7.0 s", "must not be suspended"),
        (Ill(set_s=-3.0), "wall clock", "mind", "set by -3.0 s", "let NTP slew it"),
    ],
)
def test_an_ill_host_is_told_with_its_cure(
    host: Host, what: str, verdict: str, told: str, do: str, seen: Callable[[Host], dict[str, Finding]]
) -> None:
    well, ill = seen(Ill()), seen(host)
    assert what not in well or (well[what].verdict, well[what].do) == ("well", "")
    assert ill[what].verdict == verdict
    assert told in ill[what].seen
    assert do in ill[what].do
    others = {name for name, each in ill.items() if each != well.get(name)}
    assert others == {what}, "one thing is wrong, and one is told"


def test_a_disk_that_takes_no_writes_does_not_end_the_look(
    seen: Callable[[Host], dict[str, Finding]], tmp_path: Path
) -> None:
    """The real probe: a directory is where its file should be."""
    (tmp_path / "n1" / ".doctor").mkdir()
    found = seen(Host())
    assert (found["disk speed"].verdict, "nothing can be written" in found["disk speed"].seen) == ("ill", True)
    assert "clock" in found


def test_the_real_clocks_agree(seen: Callable[[Host], dict[str, Finding]]) -> None:
    found = seen(Host())
    assert found["clock"].verdict == "well", found["clock"].seen
    assert "wall clock" not in found


# --- a peer that is gone ----------------------------------------------------------------------------------------------


class _Node(BaseHTTPRequestHandler):
    """Says that it leads, and that another is a member too. Without `gone` it asks for a token."""

    def do_GET(self) -> None:
        if not hasattr(self.server, "gone"):
            error = {"code": "unauthenticated", "message": "an access token is needed", "outcome": "denied"}
            return self._answer(401, {"error": error})
        if self.path == "/readyz":
            error = {"code": "not_ready", "message": "this data directory is new", "outcome": "retry"}
            return self._answer(503, {"error": error})
        port = self.server.server_address[1]
        here = f"127.0.0.1:{port}"
        gone: str = self.server.gone
        members = [
            {"id": "n1", "role": "leader", "http": here, "peer": here, "applied": 9, "known_level": 1},
            {"id": "n2", "role": "follower", "http": gone, "peer": gone, "applied": None, "known_level": None},
        ]
        return self._answer(200, {"leader": "n1", "term": 3, "revision": 9, "level": 1, "members": members})

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _found(gone: str | None) -> dict[str, Finding]:
    """At one such node."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Node)
    if gone is not None:
        server.gone = gone  # type: ignore[attr-defined]
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = {each.what: each for each in of_cluster([Endpoint(f"127.0.0.1:{server.server_address[1]}")], 5.0)}
        server.shutdown()
    return found


def test_a_peer_that_cannot_be_reached_is_named_with_what_to_do() -> None:
    gone = free_address()
    found = _found(gone)
    assert [name for name, each in found.items() if each.verdict == "ill"] == ["n2 peer", "n2"]
    assert gone in found["n2 peer"].seen
    assert "open the port between the nodes" in found["n2 peer"].do
    assert "start it; if its disk is lost, holdfast member replace" in found["n2"].do
    assert found["n1 peer"].verdict == found["n1"].verdict == found["leader"].verdict == "well"
    assert found["level"].seen == "level 1, which all that answer know"


def test_a_node_that_asks_for_a_token_is_not_taken_for_one_that_is_down() -> None:
    told = _found(None)["cluster"]
    assert told.verdict == "ill"
    assert told.seen.endswith("refuses: an access token is needed")
    assert "--token-file" in told.do


def test_a_node_without_the_leader_that_others_have_says_why() -> None:
    """One that was started with an empty directory in the place of its own takes connections, and answers."""

    class Forgetful(_Node):
        def _answer(self, status: int, document: Any) -> None:
            super()._answer(status, document if status != 200 else {**document, "leader": None})

    with ThreadingHTTPServer(("127.0.0.1", 0), Forgetful) as server:
        here = "{}:{}".format(*server.server_address)
        server.gone = here  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = _found(here)
        server.shutdown()
    assert (found["n2"].verdict, found["n2"].seen) == ("ill", "follower, not ready: this data directory is new")
    assert (found["n1"].verdict, found["leader"].verdict) == ("well", "mind")
