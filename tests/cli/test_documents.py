"""The commands of docs/RUNBOOKS.md are commands: each is run against a real cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from tests.cli.conftest import Told
from tests.cli.processes import REPOSITORY


def test_the_commands_of_the_runbooks_run(run: Callable[..., Told]) -> None:
    text = (REPOSITORY / "docs" / "RUNBOOKS.md").read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 6
    for line in dict.fromkeys(lines):
        program, *words = shlex.split(line)
        assert program == "holdfast"
        code, out, err = run(*words)
        # The doctor may find the disk of a machine that runs tests slow.
        assert code == 0 or words == ["doctor"], (line, err)
        assert out.strip()
