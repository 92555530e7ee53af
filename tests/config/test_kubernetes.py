"""configs/kubernetes and the scrape job: what their comments say to type is typed, and a node lets its operator in."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
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
    typed(directory, [line for line in commands(OFFERED) if not re.match("kubectl port-forward|holdfast status", line)])
    # What the container that prepares the keys does.
    for file in (directory / "secret-holdfast").iterdir():
        file.chmod(0o600)
    return directory


def environment(operator: Path) -> dict[str, str]:
    """Of the container of the second pod."""
    sets = [each for each in yaml.safe_load_all(OFFERED.read_text()) if each["kind"] == "StatefulSet"]
    pod = sets[0]["spec"]["template"]["spec"]["containers"][0]
    values = {entry["name"]: entry["value"] for entry in pod["env"] if "value" in entry}
    here = {name: text.replace("$(HOLDFAST_NODE_ID)", "holdfast-1") for name, text in values.items()}
    keys = str(operator / "secret-holdfast")
    return {"HOLDFAST_NODE_ID": "holdfast-1", **{name: text.replace(KEYS, keys) for name, text in here.items()}}


def test_a_pod_gets_a_configuration_that_a_node_starts_with(operator: Path) -> None:
    config = load_config(DOCKER, environment(operator))
    assert (config.node_id, config.peer_advertise) == ("holdfast-1", "holdfast-1.holdfast-nodes:7200")
    assert [member.id for member in config.members] == ["holdfast-0", "holdfast-1", "holdfast-2"]
    assert config.tls is not None and config.tokens_required and not config.insecure
    assert config.root_token == digest_of((operator / "root.token").read_text().strip()), "nobody could make a token"
    given = {file.name for file in (operator / "secret-holdfast").iterdir()}
    assert not given & {"root.token", "ca.key"}, "more than a node needs"
    assert stat.S_IMODE((operator / "root.token").stat().st_mode) == 0o600


@contextmanager
def alone(operator: Path) -> Iterator[str]:
    """One node with the configuration of a pod, but for where it is; its address."""
    http, peer = free_port(), f"127.0.0.1:{free_port()}"
    around = {
        **os.environ, **environment(operator), "HOLDFAST_DATA_DIR": str(operator / "data"),
        "HOLDFAST_HTTP": f"127.0.0.1:{http}", "HOLDFAST_PEER": peer,
        "HOLDFAST_MEMBERS": f"holdfast-1={peer},localhost:{http}",
    }  # fmt: skip
    words = [sys.executable, "-m", "coordinator.cli", "node", "--config", str(DOCKER)]
    with open(operator / "log", "wb") as log:
        node = subprocess.Popen(words, cwd=REPOSITORY, env=around, stdout=log, stderr=log)
    try:
        tls = client_context(str(operator / "certs" / "ca.pem"), None, None)

        def ready() -> bool:
            assert node.poll() is None, (operator / "log").read_text()
            try:
                with urllib.request.urlopen(f"https://localhost:{http}/readyz", timeout=5, context=tls):
                    return True
            except OSError:
                return False

        wait_until(ready, START_S, "a ready node")
        yield f"localhost:{http}"
    finally:
        node.terminate()
        node.wait(timeout=90)


def test_the_operator_gets_in_and_prometheus_reads_the_metrics(operator: Path) -> None:
    (job,) = yaml.safe_load(SCRAPED.read_text())["scrape_configs"]
    with alone(operator) as address:
        look = next(line for line in commands(OFFERED) if line.startswith("holdfast status"))
        typed(operator, [look.replace("localhost:7100", address)])
        where = {"HOLDFAST_ENDPOINTS": address, "HOLDFAST_CA": str(operator / "certs" / "ca.pem")}
        typed(operator, commands(SCRAPED), **where)
        assert "holdfast_role" in scraped(job, address, operator / "secret-holdfast-metrics")
        with pytest.raises(EndpointError) as error:
            call(f"https://{address}", "GET", "/metrics")
        assert error.value.status is None, "without the authority nothing is believed"


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
