"""docs/QUICKSTART.md works as printed: its commands are run, block by block, against a real cluster."""

from __future__ import annotations

import re
import subprocess

from tests.cli.processes import REPOSITORY, Up


def test_every_command_works_as_printed(cluster: Up) -> None:
    text = (REPOSITORY / "docs" / "QUICKSTART.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        here = re.sub(r"127\.0\.0\.1:710(\d)", lambda match: cluster.endpoint(int(match[1])), block)
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", here], capture_output=True, text=True, timeout=30, check=False
        )
        assert ran.returncode == 0, (block, ran.stderr)
        refused = re.findall(r'"code": "(\w+)"', ran.stdout)
        assert refused in ([], ["lock_held"]), (block, ran.stdout)
        assert (refused == ["lock_held"]) == ("worker-b" in block)
        assert ran.stdout.strip()
