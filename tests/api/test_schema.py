"""/openapi.json against the cluster that serves it: no 5xx, no answer the document does not have (schemathesis)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import REPOSITORY, Up, up
from tests.waiting import wait_until

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance"
)
CLUSTER = "^/api/v1/cluster"
CONFIG = """
[[operations]]
include-path = "/api/v1/watch"
request-timeout = 3.0
max-stream-events = 1
"""
"""A watch is read until its first event, or so long."""


def no_complaint(cluster: Up, directory: Path, *chosen: str) -> str:
    """What schemathesis says; it has found nothing."""
    config = directory / "schemathesis.toml"
    config.write_text(CONFIG)
    run = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(config),
            "run", f"http://{cluster.endpoint(1)}/openapi.json", *chosen, "--checks", CHECKS,
            "--phases", "examples,coverage,fuzzing", "--generation-deterministic", "--warnings", "off",
        ],
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.api.schema_hooks"}, cwd=REPOSITORY,
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-2_000:]
    return run.stdout


@pytest.mark.timeout(900)
def test_the_cluster_keeps_to_its_own_document(tmp_path: Path) -> None:
    """On one of its own: what is registered here, holders of copies for one, others would have to wait for."""
    with up(tmp_path / "data") as throwaway:
        no_complaint(throwaway, tmp_path, "--exclude-path-regex", CLUSTER, "--max-examples", "2")


@pytest.mark.timeout(300)
def test_operations_on_the_cluster_keep_to_the_document(tmp_path: Path) -> None:
    """On one of its own: members come and go, the lead is handed over, and it serves whoever is left."""
    with up(tmp_path / "data") as throwaway:
        said = no_complaint(throwaway, tmp_path, "--include-path-regex", CLUSTER, "--max-examples", "12")
        assert "Operations:       6 selected" in said, said
        left = wait_until(lambda: throwaway.cluster(1), 30, "an answer of the first node")
        assert left["leader"] in [member["id"] for member in left["members"]]
        assert left["term"] > 2, "the lead was never handed over"
