"""The Python in README and docs works as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.processes import REPOSITORY, Up

ELSEWHERE = {"docs/GRPC.md", "docs/SDK.md"}
"""The first is run by tests/rpc/test_leases.py, which has a node that serves gRPC; the other is one program, below."""

AT_TOP_LEVEL = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), "SDK.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
async def main():
    running = eval(code, {"__name__": "__main__"})
    if inspect.isawaitable(running):
        await running
asyncio.run(main())
"""
"""What `python -m asyncio` does with what is typed."""


def programs() -> dict[str, list[str]]:
    """By document: its blocks of Python."""
    found = {}
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
        if blocks:
            found[str(path.relative_to(REPOSITORY))] = blocks
    return found


def run(program: str, cluster: Up, *, at_top_level: Path | None = None) -> str:
    """What it prints. `at_top_level`: it has `await` there, and this is where it may write."""
    here = re.sub(r"127\.0\.0\.1:710(\d)", lambda match: cluster.endpoint(int(match[1])), program)
    assert here != program, "the program names no node of a development cluster"
    ran = subprocess.run(
        [sys.executable, "-c", AT_TOP_LEVEL if at_top_level else here],
        input=here if at_top_level else None,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=at_top_level or REPOSITORY,
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


def test_the_guide_to_the_sdk_is_one_program(cluster: Up, tmp_path: Path) -> None:
    told = run("\n".join(programs()["docs/SDK.md"]), cluster, at_top_level=tmp_path).splitlines()
    assert "['tmp/a', 'tmp/b']" in told
    assert (tmp_path / "report.txt").read_bytes() == b"ready\n"
    assert any("may not write to 'a1'" in line for line in told)
    assert "me" in told
