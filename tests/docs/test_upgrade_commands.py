"""The upgrade of docs/OPERATIONS.md as printed, on a host that runs the unit of configs/systemd and has no systemd.

What systemd would do with the unit a few lines of shell do: its own command lines, its signal, its time to stop.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import __version__
from tests.docs.blocks import REPOSITORY, commands
from tests.docs.conftest import START_S, Terminal, settings
from tests.docs.fresh import clone
from tests.ports import free_address
from tests.waiting import wait_until

UNIT = (REPOSITORY / "configs" / "systemd" / "holdfast.service").read_text()
NEXT = "0.2.0"
TYPED = (
    "systemctl stop holdfast",
    f"/opt/holdfast/bin/pip install --upgrade ./holdfast-{NEXT}-py3-none-any.whl",
    "systemctl start holdfast",
)


def of_unit(key: str) -> str:
    (found,) = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return str(found)


SYSTEMCTL = f"""\
#!/bin/bash
set -eu
case "$1 $2" in
"start holdfast") {of_unit("ExecStartPre")}; {of_unit("ExecStart")} >>node.log 2>&1 & echo $! >node.pid ;;
"stop holdfast") kill -s {of_unit("KillSignal")} $(cat node.pid)
  timeout {of_unit("TimeoutStopSec")} tail --sleep-interval=0.1 --pid=$(cat node.pid) -f /dev/null ;;
*) exit 1 ;;
esac
"""
PIP = '#!/bin/sh\nexec {python} -m pip --quiet "$@" --no-index --no-deps --target {opt}/lib\n'
HOLDFAST = '#!/bin/sh\nPYTHONPATH={opt}/lib exec {python} -m coordinator.cli "$@"\n'


def wheel(source: Path, into: Path, version: str) -> None:
    module = source / "coordinator" / "__init__.py"
    module.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', module.read_text()))
    words = ["wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into), "."]
    subprocess.run([sys.executable, "-m", "pip", *words], cwd=source, check=True, timeout=180)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Terminal]:
    """With this version installed under /opt, the next one to hand, and nothing running."""
    (source := tmp_path / "source").mkdir()
    tree = clone(source, installed=True)
    for version in (__version__, NEXT):
        wheel(tree, tmp_path, version)
    opt, etc, programs = (tmp_path / each for each in ("opt", "etc", "bin"))
    for file, text in ((opt / "bin/pip", PIP), (opt / "bin/holdfast", HOLDFAST), (programs / "systemctl", SYSTEMCTL)):
        file.parent.mkdir(parents=True, exist_ok=True)
        made = text
        for place, here in (
            ("{python}", sys.executable),
            ("{opt}", opt),
            ("/opt/holdfast", opt),
            ("/etc/holdfast", etc),
        ):
            made = made.replace(place, str(here))
        file.write_text(made)
        file.chmod(0o755)
    etc.mkdir()
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    terminal = Terminal(tmp_path, {"/opt/holdfast": str(opt)}, {"PATH": path, "PYTHONPATH": ""})
    yield terminal
    terminal.run("test ! -e node.pid || systemctl stop holdfast")


def test_a_node_is_upgraded_as_printed(host: Terminal) -> None:
    (block,) = (each.script for each in commands("docs/OPERATIONS.md") if "systemctl" in each.script)
    assert tuple(block.splitlines()) == TYPED
    http, account = free_address(), "/api/v1/cluster/members/n1"
    (host.directory / "etc" / "node.toml").write_text(settings("n1", http, free_address()))

    def version() -> str:
        answer = host.run(f"curl -sf -o /dev/null http://{http}/readyz && curl -sf http://{http}{account}")
        return str(json.loads(answer.stdout)["version"]) if answer.returncode == 0 else ""

    host.told(f"/opt/holdfast/bin/pip install ./holdfast-{__version__}-py3-none-any.whl; {TYPED[-1]}")
    wait_until(lambda: version() == __version__, START_S, "the node")
    asked = '{"lock_key": "kept", "client_id": "w1", "lease_time_ms": 600000}'
    held = json.loads(host.told(f"curl -sf http://{http}/api/v1/locks/acquire -d '{asked}'"))
    host.told(block)
    wait_until(lambda: version() == NEXT, START_S, "the node with the next version")
    kept = json.loads(host.told(f"curl -sf http://{http}/api/v1/locks/kept"))
    assert (kept["holder"], kept["fencing_token"]) == ("w1", held["fencing_token"])
    # All that a node serves is in the wheel.
    assert "Holdfast" in host.told(f"curl -sf http://{http}/ui/")
