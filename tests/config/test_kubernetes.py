"""configs/kubernetes and the scrape job: what their comments say to type is typed, and a node lets its operator in."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.config import load_config
from coordinator.endpoint import EndpointError, call
from coordinator.tokens import digest_of
from coordinator.trust import client_context
from tests.cli.processes import REPOSITORY, START_S
from tests.ports import free_port
from tests.waiting import wait_until

OFFERED = REPOSITORY / "configs" / "kubernetes" / "holdfast.yaml"
SCRAPED = REPOSITORY / "configs" / "prometheus" / "scrape.yml"
DOCKER = REPOSITORY / "configs" / "docker.toml"
KEYS = "/etc/holdfast-keys"

_KUBECTL = """\
#!/bin/sh
# Of a cluster that is not there: what would be in the secret is in a directory.
test "$1 $2" = "create secret" || exit 0
mkdir -p "secret-$4"
for word; do case $word in --from-file=*) cp "${word#--from-file=}" "secret-$4/" ;; esac; done
"""
_HOLDFAST = f'#!/bin/sh\nexec {sys.executable} -m coordinator.cli "$@"\n'


def commands(path: Path) -> list[str]:
    """Of the comments, in their order; a command may go over two lines."""
    typed = re.sub(r"\\\n# +", "", path.read_text())
    return re.findall(r"^#   ((?:holdfast|for|openssl|kubectl) .*)$", typed, re.MULTILINE)


def typed(directory: Path, lines: list[str], **environment: str) -> None:
    programs = directory / "bin"
    programs.mkdir(exist_ok=True)
    for name, script in (("kubectl", _KUBECTL), ("holdfast", _HOLDFAST)):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    around = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY), **environment}
    for line in lines:
        words = ["bash", "-euo", "pipefail", "-c", line]
        ran = subprocess.run(words, cwd=directory, env=around, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an operator stands who has typed what comes before the pods are there."""
    directory = tmp_path_factory.mktemp("operator")
    before = [
        line
        for line in commands(OFFERED)
        if not re.match("kubectl (port-forward|delete)|holdfast (status|member)", line)
    ]
    typed(directory, before)
    # What the container that prepares the keys does.
    for file in (directory / "secret-holdfast").iterdir():
        file.chmod(0o600)
    return directory


def environment(operator: Path, pod_name: str = "holdfast-1") -> dict[str, str]:
    """Of the container of a pod."""
    sets = [each for each in yaml.safe_load_all(OFFERED.read_text()) if each["kind"] == "StatefulSet"]
    pod = sets[0]["spec"]["template"]["spec"]["containers"][0]
    values = {entry["name"]: entry["value"] for entry in pod["env"] if "value" in entry}
    here = {name: text.replace("$(HOLDFAST_NODE_ID)", pod_name) for name, text in values.items()}
    keys = str(operator / "secret-holdfast")
    return {"HOLDFAST_NODE_ID": pod_name, **{name: text.replace(KEYS, keys) for name, text in here.items()}}


def test_a_pod_gets_a_configuration_that_a_node_starts_with(operator: Path) -> None:
    config = load_config(DOCKER, environment(operator))
    assert (config.node_id, config.peer_advertise) == ("holdfast-1", "holdfast-1.holdfast-nodes:7200")
    assert [member.id for member in config.members] == ["holdfast-0", "holdfast-1", "holdfast-2"]
    assert config.tls is not None and config.tokens_required and not config.insecure
    assert config.root_token == digest_of((operator / "root.token").read_text().strip()), "nobody could make a token"
    given = {file.name for file in (operator / "secret-holdfast").iterdir()}
    assert not given & {"root.token", "ca.key"}, "more than a node needs"
    assert stat.S_IMODE((operator / "root.token").stat().st_mode) == 0o600


class Pods:
    """Nodes with the configuration of pods, but for where they are: `localhost`, which their certificates name."""

    def __init__(self, operator: Path, names: tuple[str, ...]) -> None:
        self.http = {name: f"localhost:{free_port()}" for name in names}
        self.peer = {name: f"localhost:{free_port()}" for name in names}
        self._operator = operator
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._tls = client_context(str(operator / "certs" / "ca.pem"), None, None)

    def data(self, name: str) -> Path:
        return self._operator / f"data-{len(self.http)}-{name}"

    def start(self, name: str) -> None:
        around = {
            **os.environ, **environment(self._operator, name), "HOLDFAST_DATA_DIR": str(self.data(name)),
            "HOLDFAST_HTTP": self.http[name].replace("localhost", "127.0.0.1"),
            "HOLDFAST_PEER": self.peer[name].replace("localhost", "127.0.0.1"),
            "HOLDFAST_MEMBERS": ";".join(f"{each}={self.peer[each]},{self.http[each]}" for each in self.http),
        }  # fmt: skip
        words = [sys.executable, "-m", "coordinator.cli", "node", "--config", str(DOCKER)]
        with open(self._log(name), "ab") as log:
            self._running[name] = subprocess.Popen(words, cwd=REPOSITORY, env=around, stdout=log, stderr=log)

    def _log(self, name: str) -> Path:
        return self._operator / f"{name}.log"

    def log(self, name: str) -> str:
        return self._log(name).read_text()

    def readiness(self, name: str) -> str:
        """Why it does not serve, or nothing."""
        assert self._running[name].poll() is None, self.log(name)
        try:
            with urllib.request.urlopen(f"https://{self.http[name]}/readyz", timeout=5, context=self._tls):
                return ""
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError as error:
            return str(error)

    def wait_ready(self) -> None:
        for name in self._running:
            wait_until(lambda name=name: not self.readiness(name), START_S, f"{name} to be ready")

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running.pop(name).wait(timeout=90)

    def end(self) -> None:
        for node in self._running.values():
            node.terminate()
        for node in self._running.values():
            node.wait(timeout=90)


@contextmanager
def pods(operator: Path, *names: str) -> Iterator[Pods]:
    there = Pods(operator, names)
    try:
        for name in names:
            there.start(name)
        there.wait_ready()
        yield there
    finally:
        there.end()


def test_the_operator_gets_in_and_prometheus_reads_the_metrics(operator: Path) -> None:
    (job,) = yaml.safe_load(SCRAPED.read_text())["scrape_configs"]
    with pods(operator, "holdfast-1") as alone:
        address = alone.http["holdfast-1"]
        look = next(line for line in commands(OFFERED) if line.startswith("holdfast status"))
        typed(operator, [look.replace("localhost:7100", address)])
        where = {"HOLDFAST_ENDPOINTS": address, "HOLDFAST_CA": str(operator / "certs" / "ca.pem")}
        typed(operator, commands(SCRAPED), **where)
        assert "holdfast_role" in scraped(job, address, operator / "secret-holdfast-metrics")
        with pytest.raises(EndpointError) as error:
            call(f"https://{address}", "GET", "/metrics")
        assert error.value.status is None, "without the authority nothing is believed"


def test_a_pod_that_lost_its_volume_is_taken_in_again_under_its_name(operator: Path) -> None:
    """As the comments say. What was written before is on its new volume, and its vote counts: with one more gone, the
    two that are left go on."""
    take_in = next(line for line in commands(OFFERED) if line.startswith("holdfast member replace"))
    with pods(operator, "holdfast-0", "holdfast-1", "holdfast-2") as three:
        where = {"HOLDFAST_ENDPOINTS": three.http["holdfast-0"], "HOLDFAST_CA": "certs/ca.pem"}
        where |= {"HOLDFAST_TOKEN_FILE": "root.token"}
        typed(operator, ["holdfast namespace put kept"], **where)
        typed(operator, ["holdfast transfer --to holdfast-0 || holdfast status | grep 'leader holdfast-0'"], **where)
        three.kill("holdfast-1")
        shutil.rmtree(three.data("holdfast-1"))
        three.start("holdfast-1")
        wait_until(lambda: "peer_lost_its_directory" in three.log("holdfast-0"), START_S, "it to be ignored")
        assert "holdfast member replace" in three.readiness("holdfast-1")

        for printed, here in (
            ("holdfast-1.holdfast-nodes:7200", three.peer["holdfast-1"]),
            ("holdfast-1.holdfast-nodes:7100", three.http["holdfast-1"]),
            ("localhost:7100", three.http["holdfast-0"]),
        ):
            assert printed in take_in
            take_in = take_in.replace(printed, here)
        typed(operator, [take_in])
        three.wait_ready()
        three.kill("holdfast-2")
        where["HOLDFAST_ENDPOINTS"] = three.http["holdfast-1"]
        typed(operator, ["holdfast namespace list | grep kept", "holdfast namespace put more"], **where)


def scraped(job: dict[str, Any], address: str, volume: Path) -> str:
    """As Prometheus does what its job says."""
    token, authority = (
        volume / Path(each).name for each in (job["authorization"]["credentials_file"], job["tls_config"]["ca_file"])
    )
    request = urllib.request.Request(
        f"{job['scheme']}://{address}/metrics", headers={"Authorization": f"Bearer {token.read_text().strip()}"}
    )
    with urllib.request.urlopen(request, timeout=20, context=client_context(str(authority), None, None)) as answer:
        return str(answer.read().decode())


def test_prometheus_asks_for_names_that_certificates_have() -> None:
    (job,) = yaml.safe_load(SCRAPED.read_text())["scrape_configs"]
    asked = [target for each in job["static_configs"] for target in each["targets"]]
    made = " ".join(commands(OFFERED))
    assert asked == [f"holdfast-{number}.holdfast-nodes:7100" for number in range(3)]
    assert "for n in 0 1 2" in made and "--host holdfast-$n.holdfast-nodes" in made


def test_no_other_file_has_commands_in_its_comments() -> None:
    """Lines set apart in a comment are typed above, or are lines of a configuration."""
    for path in sorted(each for each in (REPOSITORY / "configs").rglob("*") if each.is_file()):
        joined = re.sub(r"\\\n# +", "", path.read_text())
        apart = re.findall(r"^#   (\S.*)$", joined, re.MULTILINE)
        others = [line for line in apart if not re.match(r"\w+: \[", line)]
        assert others == (commands(path) if path in (OFFERED, SCRAPED) else []), path
