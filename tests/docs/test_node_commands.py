"""Commands that run nodes, and those that change which of them are members: as printed, on ports of this host."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import Up, up
from tests.docs.conftest import START_S, Terminal, node, running
from tests.docs.fresh import LEADS, started
from tests.ports import free_address, free_bases
from tests.waiting import wait_until

UPS = {"holdfast up": ("",), "holdfast up --nodes 1|3|5": ("--nodes 1", "--nodes 5")}
NODES = {"holdfast node --config FILE": (), "holdfast node --json": ("--json",)}
REPLACE = "holdfast member replace n2 n4 --peer 10.0.0.4:7200 --http 10.0.0.4:7100"
AGAIN = "holdfast member replace n5 n5 --peer 10.0.0.5:7200 --http 10.0.0.5:7100"
MEMBERS = {
    "holdfast member add|replace|remove": (
        "holdfast member add n5 --peer 10.0.0.5:7200 --http 10.0.0.5:7100",
        AGAIN,
        "holdfast member remove n5",
    ),
    "holdfast member replace OLD NEW --peer … --http …": (REPLACE,),
    "holdfast member replace n2 n2 --peer … --http …": (),
    "holdfast member replace holdfast-1 holdfast-1 --peer … --http …": (),
}
TYPED = {*UPS, *NODES, *MEMBERS, REPLACE}


@pytest.mark.parametrize(("command", "options"), [(each, words) for each, given in UPS.items() for words in given])
def test_a_cluster_greets(tmp_path: Path, command: str, options: str) -> None:
    terminal, base = Terminal(tmp_path, {}), free_bases(5, 100, 3)
    script = f"exec {command.partition(' --')[0]} {options} --base-port {base}"
    with started(script, tmp_path, terminal.surroundings()) as greeting:
        size = int((options or "--nodes 3").split()[1])
        assert greeting.count(f"  http://127.0.0.1:{base // 100}") == size, greeting
        assert LEADS.search(greeting), greeting


@pytest.mark.parametrize("command", NODES)
def test_a_node_logs_for_people_or_for_programs(tmp_path: Path, command: str) -> None:
    terminal = Terminal(tmp_path, {})
    with node(terminal, "n1", "", *NODES[command]) as where:
        wait_until(lambda: terminal.run(f"curl -sf http://{where}/readyz").returncode == 0, START_S, "the node")
    lines = (tmp_path / "n1.log").read_text().splitlines()
    assert len(lines) > 3
    if NODES[command]:
        told = [json.loads(line) for line in lines]
        assert all({"time", "level", "event", "node"} <= set(each) for each in told), told[0]
        assert "leader" in {each["event"] for each in told}
    else:
        assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z n1 \w+", line) for line in lines), lines
        assert any(" leader leader=n1" in line for line in lines)


@contextlib.contextmanager
def newcomer(cluster: Up, terminal: Terminal, name: str, printed: str) -> Iterator[None]:
    """A node that nobody knows yet, with the cluster's secret and no members; the documents have it at `printed`."""
    http, peer = free_address(), free_address()
    terminal.instead |= {f"{printed}:7100": http, f"{printed}:7200": peer}
    text = (cluster.data / "n1.toml").read_text().partition("[[members]]")[0]
    for key, value in (("node_id", name), ("data_dir", name), ("http", http), ("peer", peer)):
        text, found = re.subn(rf'^{key} = ".*"$', f'{key} = "{value}"', text, flags=re.MULTILINE)
        assert found == 1, (key, text)
    file = cluster.data / f"{name}.toml"
    file.write_text(text)
    with running(terminal, name, "node", "--config", str(file)):
        yield


def test_members_come_and_go(tmp_path: Path) -> None:
    with up(tmp_path / "data") as cluster:
        endpoints = ",".join(map(cluster.endpoint, (1, 2, 3)))
        terminal = Terminal(tmp_path, {}, {"HOLDFAST_ENDPOINTS": endpoints})
        with newcomer(cluster, terminal, "n4", "10.0.0.4"), newcomer(cluster, terminal, "n5", "10.0.0.5"):
            for scripts in MEMBERS.values():
                told = [terminal.told(script) for script in scripts]
                assert all("leader" in each for each in told), told
            shown = terminal.told("holdfast member list")
            assert re.findall(r"^(n\d)", shown, re.MULTILINE) == ["n1", "n3", "n4"], shown
