"""The Python in README and docs works as printed."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.cli.processes import REPOSITORY, Up

ELSEWHERE = {"docs/GRPC.md"}
"""Run by tests/rpc/test_leases.py, which has a node that serves gRPC."""


def programs() -> dict[str, list[str]]:
    """By document: its blocks of Python."""
    found = {}
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
        if blocks:
            found[str(path.relative_to(REPOSITORY))] = blocks
    return found


def run(program: str, cluster: Up) -> str:
    here = re.sub(r"127\.0\.0\.1:710(\d)", lambda match: cluster.endpoint(int(match[1])), program)
    assert here != program, "the program names no node of a development cluster"
    ran = subprocess.run(
        [sys.executable, "-c", here], capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY
    )
    assert ran.returncode == 0, f"{program}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def test_the_quickstart_of_the_sdk_prints_what_a_reader_expects(cluster: Up) -> None:
    first = programs()["README.md"][0]
    token, state, valid_for = run(first, cluster).split()
    assert int(token) > 0
    assert state == "HELD"
    assert 0 < float(valid_for) <= 10


def test_every_other_program_in_the_documents_runs(cluster: Up) -> None:
    for name, blocks in programs().items():
        if name not in ELSEWHERE:
            for block in blocks:
                run(block, cluster)
