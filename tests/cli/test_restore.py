"""From a cluster under load to a new one and on: backup, restore, the same state on every disk, greater tokens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from coordinator.backups import read_backup
from coordinator.config import load_config
from coordinator.devcluster import Layout
from coordinator.machine.machine import Machine
from coordinator.machine.restoring import begin_anew
from tests.cli.processes import Up, up
from tests.cli.test_backup import ask, lease, lock, told, writing
from tests.cli.test_backup_files import opened
from tests.ports import free_base
from tests.waiting import wait_until


def taken_under_load(
    cluster: Up, file: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What was acknowledged before the backup was asked for, and all that ever was."""
    with writing(cluster) as granted:
        wait_until(lambda: len(granted) >= 50, 90, "some writes")
        before = list(granted)
        code, _, complaint = told(capsys, "backup", str(file), "--endpoints", cluster.endpoint(2))
        assert code == 0, complaint
        during = len(granted)
        wait_until(lambda: len(granted) >= during + 50, 90, "writes that go on")
    assert during > len(before), "nobody wrote while the backup was taken"
    return before, granted


def state_of(layout: Layout, node_id: str) -> str:
    """The digest of what a node will start with."""
    machine, storage = Machine(), opened(load_config(layout.config_path(node_id), {}).cluster_options())
    storage.snapshots.load(machine.restore)
    return machine.digest().hex()


def test_a_backup_under_load_restored_on_three_nodes_is_the_same_state_and_goes_on_above_every_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, at_s = tmp_path / "state.backup", int(time.time()) + 60
    with up(tmp_path / "old") as cluster:
        before, ever = taken_under_load(cluster, file, capsys)
    greatest = max(each["fencing_token"] for each in ever)

    layout = Layout(tmp_path / "new", 3, free_base(3), free_base(3))
    layout.write()
    states = {}
    for node_id in layout.ids:  # as on three hosts, each with a copy of the file
        words = ["restore", str(file), "--at", str(at_s), "--config", str(layout.config_path(node_id))]
        code, document, complaint = told(capsys, *words)
        assert code == 0, complaint
        assert document["first_token"] > greatest
        states[node_id] = document["digest"]
    machine = read_backup(file).machine
    begin_anew(machine.state, at_s)
    assert states == dict.fromkeys(layout.ids, machine.digest().hex())
    assert {node_id: state_of(layout, node_id) for node_id in layout.ids} == states

    with up(layout.directory, bases=(layout.http_base, layout.peer_base)) as new:
        for number in (1, 2, 3):
            for each in before[:: len(before) // 20]:
                found = ask(new, "GET", f"/leases/{each['lease_id']}", number=number)
                assert (found["state"], found["fencing_token"]) == ("ACTIVE", each["fencing_token"])
            tokens = [grant(new, f"new/{number}", number)["fencing_token"] for grant in (lock, lease)]
            assert greatest < tokens[0] < tokens[1], "a token that was issued before, or a smaller one"
            greatest = tokens[1]
