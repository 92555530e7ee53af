"""What is committed is all that a newcomer needs: README's commands in a clone, with the packages installed here."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.docs.blocks import REPOSITORY, commands, inline
from tests.docs.fresh import ELSEWHERE

TYPED = {"make up", ELSEWHERE, "python -m tests.docs.fresh"}
"""What is typed by it: the last one, which types the second, which is the first on other ports."""


def test_a_clone_comes_to_its_first_lock() -> None:
    words = [sys.executable, "-m", "tests.docs.fresh", "--installed"]
    ran = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=230, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.match(
        r"fresh clone to the first lock \(token 1\) and the first program \(2 HELD \d+\.\d\): \d+ s", ran.stdout
    )


def test_it_is_what_the_readme_says() -> None:
    typed = {command.script for command in commands("README.md")} | set(inline("README.md"))
    assert typed >= TYPED
