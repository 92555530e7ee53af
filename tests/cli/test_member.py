"""`holdfast member` on real nodes: one that joins and leaves, and one that lost its directory and is replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli import main
from tests.cli.processes import REPOSITORY, Up, up
from tests.ports import free_address
from tests.waiting import wait_until


def start_node(path: Path, text: str, log: Path) -> subprocess.Popen[bytes]:
    path.write_text(text)
    with open(log, "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli", "node", "--config", str(path)],
            cwd=REPOSITORY,
            stdout=output,
            stderr=output,
        )


def roles(cluster: Up, number: int) -> dict[str, str]:
    view = cluster.cluster(number)
    return {member["id"]: member["role"] for member in view["members"]} if view else {}


def test_a_node_is_added_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a person and for a program, and a second time: an added one is no mistake only if that is said."""
    http, peer = free_address(), free_address()
    with up(tmp_path / "data") as cluster:
        where = ["--endpoints", ",".join(cluster.endpoint(number) for number in (1, 2, 3))]

        def told(*words: str) -> tuple[int, str, str]:
            capsys.readouterr()
            code = main(["member", *words, *where])
            out, err = capsys.readouterr()
            return code, out, err

        fresh = start_node(cluster.data / "n4.toml", fresh_config(cluster, "n4", http, peer), tmp_path / "fresh.log")
        try:
            adding = ("add", "n4", "--peer", peer, "--http", http)
            code, out, err = told(*adding)
            assert code == 0, err
            row = next(line.split() for line in out.splitlines() if line.startswith("n4 "))
            assert row[-2:] == [http, peer]
            wait_until(lambda: roles(cluster, 1).get("n4") == "follower", 90, "n4 to vote")

            code, out, err = told(*adding)
            assert (code, out, err) == (1, "", "holdfast: n4 is a member already. Nothing was changed.\n")
            code, out, _ = told(*adding, "--if-absent", "--json")
            assert (code, [each["id"] for each in json.loads(out)["members"]]) == (0, ["n1", "n2", "n3", "n4"])
            code, _, err = told("add", "n4", "--peer", free_address(), "--http", http, "--if-absent", "--json")
            assert (code, json.loads(err)["error"]["outcome"]) == (1, "denied")  # it is there, and elsewhere
            code, _, err = told("add", "n5", "--peer", "nonsense", "--http", http)
            assert (code, "must be host:port" in err) == (1, True)

            code, out, err = told("remove", "n4", "--json")
            assert (code, [each["id"] for each in json.loads(out)["members"]]) == (0, ["n1", "n2", "n3"]), err
            assert sorted(roles(cluster, 1)) == ["n1", "n2", "n3"]
        finally:
            fresh.kill()
            fresh.wait(timeout=90)


def fresh_config(cluster: Up, name: str, http: str, peer: str) -> str:
    """Of a node that is no member yet."""
    text = (cluster.data / "n1.toml").read_text().split("[[members]]")[0]
    for key, value in (("node_id", name), ("data_dir", name), ("http", http), ("peer", peer)):
        text = _set(text, key, value)
    return text


def test_a_member_that_lost_its_directory_is_ignored_and_can_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with up(tmp_path / "data") as cluster:
        view = wait_until(lambda: cluster.cluster(1), 90, "the cluster")
        lost = next(member for member in view["members"] if member["id"] != view["leader"])
        witness = next(number for number in (1, 2, 3) if f"n{number}" == view["leader"])
        pid = wait_until(
            lambda: next(m["pid"] for m in (cluster.cluster(witness) or view)["members"] if m["id"] == lost["id"]),
            10,
            "its pid",
        )
        os.kill(pid, signal.SIGKILL)
        cluster.wait_for(f"{lost['id']} *** the process was killed")
        config = (cluster.data / f"{lost['id']}.toml").read_text()
        shutil.rmtree(cluster.data / lost["id"])
        amnesiac = start_node(cluster.data / f"{lost['id']}.toml", config, tmp_path / "amnesiac.log")
        fresh = None
        try:
            cluster.wait_for("peer_lost_its_directory")
            http, peer = free_address(), free_address()
            text = fresh_config(cluster, "n9", http, peer)
            fresh = start_node(cluster.data / "n9.toml", text, tmp_path / "fresh.log")
            arguments = ["member", "replace", lost["id"], "n9", "--peer", peer, "--http", http]
            assert main([*arguments, "--endpoint", cluster.endpoint(witness)]) == 0, capsys.readouterr().err
            assert "n9 votes; removing" in capsys.readouterr().out
            assert sorted(roles(cluster, witness)) == sorted({"n1", "n2", "n3", "n9"} - {lost["id"]})
        finally:
            for process in (amnesiac, fresh):
                if process is not None:
                    process.kill()
                    process.wait(timeout=90)


def _set(text: str, key: str, value: str) -> str:
    lines = [line for line in text.splitlines() if line.partition("=")[0].strip() != key]
    return "\n".join([lines[0], f'{key} = "{value}"', *lines[1:]]) + "\n"
