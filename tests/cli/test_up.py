"""`holdfast up` from greeting to the last process: real nodes, real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli import main
from coordinator.cli.nodes import layout_of
from coordinator.cli.program import parser
from coordinator.cli.telling import ForPrograms
from coordinator.config import load_config
from coordinator.devcluster import DevClusterError, Layout
from tests.cli.processes import REPOSITORY, Up, alive, up
from tests.ports import free_base
from tests.waiting import wait_until


def pids(cluster: Up) -> dict[str, int]:
    seen = wait_until(
        lambda: (view := cluster.cluster(1)) and all(m["pid"] for m in view["members"]) and view, 10, "every pid"
    )
    return {member["id"]: member["pid"] for member in seen["members"]}


def test_three_nodes_greet_fail_over_and_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with up(tmp_path / "data") as cluster:
        before = pids(cluster)
        first = cluster.cluster(1)
        assert first is not None
        named = {"id", "role", "http", "peer", "pid", "term", "applied", "known_level"}
        assert [set(m) for m in first["members"]] == [named] * 3
        assert sorted(m["role"] for m in first["members"]) == ["follower", "follower", "leader"]
        cluster.wait_for(f"curl http://{cluster.endpoint(1)}/api/v1/locks/acquire -d")
        cluster.wait_for(f"status --endpoint {cluster.endpoint(1)}")
        cluster.wait_for(f"kill -9 {before[first['leader']]}")

        assert main(["status", "--endpoint", cluster.endpoint(2)]) == 0
        table = capsys.readouterr().out
        assert all(node in table and str(pid) in table for node, pid in before.items())

        os.kill(before[first["leader"]], signal.SIGKILL)
        cluster.wait_for(f"{first['leader']} *** the process was killed by SIGKILL")
        witness = next(number for number in (1, 2, 3) if f"n{number}" != first["leader"])
        wait_until(
            lambda: (view := cluster.cluster(witness)) and view["leader"] not in (None, first["leader"]),
            10,
            "a new leader",
        )
        assert cluster.end(signal.SIGINT) == 0
        assert cluster.lines[-1] == "stopped"
        assert not any(alive(pid) for pid in before.values())


@pytest.mark.parametrize("nodes", [1, 5])
def test_one_and_five_nodes(tmp_path: Path, nodes: int) -> None:
    with up(tmp_path / "data", nodes) as cluster:
        assert len(pids(cluster)) == nodes
        assert cluster.end() == 0


def test_what_happens_is_json_a_line_where_that_is_asked_for(tmp_path: Path) -> None:
    cluster = Up(tmp_path / "data", 1, more=("--json",))
    try:
        told = json.loads(cluster.wait_for('"event": "up"'))
        (node,) = told["nodes"]
        assert (told["leader"], node["id"], node["http"], node["grpc"]) == ("n1", "n1", cluster.endpoint(1), None)
        os.kill(node["pid"], signal.SIGKILL)
        ended = json.loads(cluster.wait_for('"event": "node_ended"'))
        assert (ended["node"], ended["exit_code"], ended["signal"]) == ("n1", -9, "SIGKILL")
        assert cluster.process.wait(timeout=90) == 1
    finally:
        if cluster.process.poll() is None:
            cluster.end()
    wait_until(lambda: cluster.lines and '"stopped"' in cluster.lines[-1], 90, "the last line")
    events = [json.loads(line) for line in cluster.lines]
    assert [each["event"] for each in events if "node" not in each] == ["starting", "up", "all_ended", "stopped"]
    assert "node_started" in [each["event"] for each in events if each.get("node") == "n1"]


def test_what_a_node_writes_that_is_no_event_is_passed_on_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("Traceback", "[1]", '{"error": {}}', '{"event": "leader", "node": "n2"}'):
        ForPrograms().line("n2", line)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each.get("line") for each in told] == ["Traceback", "[1]", '{"error": {}}', None]
    assert {each["node"] for each in told} == {"n2"}


def test_a_node_logs_json_where_that_is_asked_for(tmp_path: Path) -> None:
    """A port that is taken ends it with a word about it."""
    base = free_base(2)
    layout = Layout(tmp_path, 1, base, base + 1)
    layout.write()
    words = [sys.executable, "-m", "coordinator.cli", "node", "--config", str(layout.config_path("n1"))]
    with socket.create_server(("127.0.0.1", base + 1)):
        for more, first in (([], "2"), (["--json"], "{")):
            ran = subprocess.run(
                [*words, *more], cwd=REPOSITORY, capture_output=True, text=True, timeout=90, check=False
            )
            assert (ran.returncode, ran.stderr[:1]) == (1, first), ran.stderr
    assert {json.loads(line)["node"] for line in ran.stderr.splitlines()} == {"n1"}


def test_it_starts_again_on_its_data(tmp_path: Path) -> None:
    with up(tmp_path / "data") as cluster:
        before = cluster.cluster(1)
    with up(tmp_path / "data", bases=cluster.bases) as cluster:
        after = cluster.cluster(1)
    assert before is not None
    assert after is not None
    assert after["term"] > before["term"]
    assert after["revision"] > before["revision"]


def test_nodes_die_with_a_killed_parent(tmp_path: Path) -> None:
    with up(tmp_path / "data") as cluster:
        nodes = pids(cluster)
        cluster.process.kill()
        cluster.process.wait(timeout=90)
        wait_until(lambda: not any(alive(pid) for pid in nodes.values()), 90, "the nodes to end")


# --- refusals -------------------------------------------------------------------------------------------------------


def test_a_taken_port_is_named_with_the_option(tmp_path: Path) -> None:
    base = free_base(3)
    with socket.create_server(("127.0.0.1", base + 2)):
        with pytest.raises(DevClusterError, match=rf"127\.0\.0\.1:{base + 2} is in use .*--base-port or --http-base"):
            Layout(tmp_path, 3, base, base + 100).check_ports()
        with pytest.raises(DevClusterError, match="--base-port or --peer-base"):
            Layout(tmp_path, 3, base + 100, base).check_ports()


@pytest.mark.parametrize(("http", "peer", "words"), [(7100, 7101, "overlap"), (0, 7200, "do not exist")])
def test_impossible_ports(tmp_path: Path, http: int, peer: int, words: str) -> None:
    with pytest.raises(DevClusterError, match=words):
        Layout(tmp_path, 3, http, peer).check_ports()
    with pytest.raises(DevClusterError, match=words):
        Layout(tmp_path, 3, free_base(3), peer, http).check_ports()


def test_what_is_written_loads_and_is_private(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data", 3, 7100, 7200)
    layout.write()
    secret = tmp_path / "data" / "cluster.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    written = secret.read_text()
    layout.write()
    assert secret.read_text() == written
    configs = [load_config(layout.config_path(node_id), {}) for node_id in layout.ids]
    assert [config.http for config in configs] == ["127.0.0.1:7101", "127.0.0.1:7102", "127.0.0.1:7103"]
    assert len({config.secret for config in configs}) == 1
    assert len({config.data_dir for config in configs}) == 3
    assert {config.grpc for config in configs} == {None}


def test_grpc_is_served_where_the_extra_is_there_unless_it_is_not_wanted(tmp_path: Path) -> None:
    def base(*words: str) -> int | None:
        options = parser().parse_args(["up", *words])
        return layout_of(options).grpc_base

    assert (base(), base("--base-port", "9000"), base("--grpc-base", "8000")) == (7300, 9200, 8000)
    assert base("--grpc-base", "0") is None
    layout = Layout(tmp_path, 3, 7100, 7200, 7300)
    layout.write()
    configs = [load_config(layout.config_path(node_id), {}) for node_id in layout.ids]
    assert [config.grpc for config in configs] == ["127.0.0.1:7301", "127.0.0.1:7302", "127.0.0.1:7303"]


def test_data_of_another_cluster_is_refused(tmp_path: Path) -> None:
    Layout(tmp_path, 3, 7100, 7200).write()
    with pytest.raises(DevClusterError, match="cluster of 3 nodes: say --nodes 3"):
        Layout(tmp_path, 5, 7100, 7200).write()
    with pytest.raises(DevClusterError, match="on other ports"):
        Layout(tmp_path, 3, 8100, 7200).write()


def test_no_node_at_the_endpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--endpoint", "127.0.0.1:1"]) == 75
    assert "is a node running there? `holdfast up` runs a cluster" in capsys.readouterr().err


def test_a_bad_configuration_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.toml"
    path.write_text('nod_id = "n1"')
    assert main(["node", "--config", str(path)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "did you mean node_id?" in told
