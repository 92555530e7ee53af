"""`holdfast doctor` on a healthy cluster, and on things that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli import main
from coordinator.doctor import file_system_of
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
    tmp_path: Path, doctor: Callable[..., tuple[int, Findings]]
) -> None:
    (tmp_path / "n1.toml").write_text('node_idd = "n1"')
    code, found = doctor("--config", str(tmp_path / "n1.toml"), "--endpoints", free_address())
    assert code == 1
    assert "node_id" in found["configuration"]["do"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/var/lib/holdfast/n1", "nfs4"), ("/var/libs", "ext4"), ("/var/lib", "nfs4"), ("/dev/shm/x", "tmpfs")],
)
def test_the_file_system_is_that_of_the_deepest_mount(path: str, kind: str) -> None:
    mounts = ["/dev/sda1 / ext4 rw 0 0", "host:/x /var/lib nfs4 rw 0 0", "tmpfs /dev/shm tmpfs rw 0 0"]
    assert file_system_of(Path(path), mounts) == kind
