"""/openapi.json against the cluster that serves it: no 5xx, no answer the document does not have (schemathesis)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.processes import Up


@pytest.mark.timeout(900)
def test_the_cluster_keeps_to_its_own_document(cluster: Up) -> None:
    run = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "run", f"http://{cluster.endpoint(1)}/openapi.json",
            # A watch does not end, and the operations on the cluster would take it apart.
            "--exclude-path", "/api/v1/watch", "--exclude-path-regex", "/api/v1/cluster/.*",
            "--phases", "examples,coverage,fuzzing", "--max-examples", "3", "--generation-deterministic",
            "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
            "response_schema_conformance,response_headers_conformance",
        ],
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8_000:]
