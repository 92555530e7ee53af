"""The Python in README and docs works as printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import REPOSITORY, blocks, documents
from tests.docs.conftest import Terminal

ELSEWHERE = {
    "docs/GRPC.md": "tests/rpc/test_leases.py has a node that serves gRPC",
    "docs/SDK.md": "one program, below",
    "docs/SECURITY.md": "tests/docs/test_guarded_commands.py has a node with a certificate",
}
_AT_TOP_LEVEL = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), "document", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
async def main():
    running = eval(code, {"__name__": "__main__"})
    if inspect.isawaitable(running):
        await running
asyncio.run(main())
"""
"""What `python -m asyncio` does with what is typed."""


def programs() -> dict[str, list[str]]:
    """By document: its blocks of Python."""
    found = {name: [block.text for block in blocks(name) if block.language == "python"] for name in documents()}
    return {name: texts for name, texts in found.items() if texts}


def at_top_level(program: str, directory: Path) -> str:
    """What a program with `await` at its top level prints, run in that directory."""
    return _run([sys.executable, "-c", _AT_TOP_LEVEL], program, directory)


def _run(command: list[str], program: str, directory: Path) -> str:
    ran = subprocess.run(
        command,
        input=program,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=directory,
    )
    assert ran.returncode == 0, f"{program}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def run(program: str, terminal: Terminal) -> str:
    here = terminal.here(program)
    assert here != program, "the program names no node of a development cluster"
    return _run([sys.executable, "-"], here, REPOSITORY)


def test_every_program_runs_and_the_first_prints_what_a_reader_expects(terminal: Terminal) -> None:
    assert set(ELSEWHERE) <= set(programs())
    told = {
        (name, turn): run(program, terminal)
        for name, texts in programs().items()
        if name not in ELSEWHERE
        for turn, program in enumerate(texts)
    }
    token, state, valid_for = told["README.md", 0].split()
    assert int(token) > 0
    assert state == "HELD"
    assert 0 < float(valid_for) <= 10


def test_the_guide_to_the_sdk_is_one_program(terminal: Terminal, tmp_path: Path) -> None:
    told = at_top_level(terminal.here("\n".join(programs()["docs/SDK.md"])), tmp_path).splitlines()
    assert "['tmp/a', 'tmp/b']" in told
    assert (tmp_path / "report.txt").read_bytes() == b"ready\n"
    assert any("may not write to 'a1'" in line for line in told)
    assert "me" in told
