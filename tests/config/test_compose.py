"""docker-compose.yml without Docker: every container's own command line is run here, in its own environment.

Names of containers become ports of this host, volumes directories; the image is the Dockerfile's, whose entry point
and configuration file are read from there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from coordinator.endpoint import EndpointError, call
from tests.cli.processes import REPOSITORY, START_S
from tests.ports import free_address
from tests.waiting import wait_until

COMPOSED = REPOSITORY / "docker-compose.yml"
TYPED = re.findall(r"^#   (\S.*?)(?: {2,}#.*)?$", COMPOSED.read_text(), re.MULTILINE)
"""What its comments, and README, say to type."""


class Host:
    """A place for every name that a service has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.services: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSED.read_text())["services"]
        nodes = [name for name in self.services if name != "join"]
        self.addresses = {f"{name}:7100": free_address() for name in nodes}
        self.addresses |= {f"{name}-peer:7200": free_address() for name in nodes}

    def here(self, text: str) -> str:
        for name, address in self.addresses.items():
            text = re.sub(rf"\b{name}\b", address, text)
        # `${NAME:-default}`, as compose reads it.
        return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)

    def environment(self, name: str) -> dict[str, str]:
        given = {key: self.here(value) for key, value in self.services[name]["environment"].items()}
        listens = {
            "HOLDFAST_HTTP": self.addresses[f"{name}:7100"],
            "HOLDFAST_PEER": self.addresses[f"{name}-peer:7200"],
        }
        return {**os.environ, **given, **listens, "HOLDFAST_DATA_DIR": str(self.directory / name)}

    @contextlib.contextmanager
    def up(self, *names: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(self._node(name))
            yield

    @contextlib.contextmanager
    def _node(self, name: str) -> Iterator[None]:
        words = [word.replace("/etc/holdfast/node.toml", str(copied_as("node.toml"))) for word in entry_point()]
        with open(self.directory / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "coordinator.cli", *words[1:]],
                cwd=REPOSITORY, env=self.environment(name), stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=90)

    def members(self) -> dict[str, str]:
        """With their roles, as the first node tells them; none while it does not."""
        try:
            seen = call(self.addresses["n1:7100"], "GET", "/api/v1/cluster", timeout_s=2)
        except EndpointError:
            return {}
        return {member["id"]: member["role"] for member in seen["members"]} if seen["leader"] else {}


def dockerfile() -> str:
    return (REPOSITORY / "Dockerfile").read_text()


def entry_point() -> list[str]:
    (line,) = re.findall(r"^ENTRYPOINT (.*)$", dockerfile(), re.MULTILINE)
    words: list[str] = json.loads(line)
    assert words[0] == "holdfast"
    return words


def copied_as(name: str) -> Path:
    (source,) = re.findall(rf"^COPY (\S+) /etc/holdfast/{re.escape(name)}$", dockerfile(), re.MULTILINE)
    return REPOSITORY / str(source)


def test_three_nodes_form_a_cluster_and_two_more_join(tmp_path: Path) -> None:
    host = Host(tmp_path)
    always = [name for name, service in host.services.items() if "profiles" not in service]
    five = [name for name, service in host.services.items() if service.get("profiles") == ["five"]]
    assert (always, five) == (["n1", "n2", "n3"], ["n4", "n5", "join"])
    with host.up(*always):
        wait_until(lambda: sorted(host.members()) == always, START_S, "three members")
        with host.up("n4", "n5"):
            (script,) = host.services["join"]["command"]
            words = [*host.services["join"]["entrypoint"], host.here(script.replace("sleep 2\n", ""))]
            words[-1] = words[-1].replace("holdfast ", f"{sys.executable} -m coordinator.cli ")
            # As the service is restarted until it ends well.
            wait_until(
                lambda: subprocess.run(words, cwd=REPOSITORY, capture_output=True, check=False).returncode == 0,
                START_S,
                "the two to be taken in",
            )
            wait_until(lambda: len(host.members()) == 5 and "learner" not in host.members().values(), START_S, "five")


def test_its_comments_say_what_the_readme_says() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert len(TYPED) == 3
    assert all(line in readme for line in TYPED)
