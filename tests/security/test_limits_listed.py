"""docs/LIMITS.md has every bound there is, with the value it has."""

from __future__ import annotations

import runpy

from tests.cli.processes import REPOSITORY


def test_the_page_is_what_the_sources_say() -> None:
    made = runpy.run_path(str(REPOSITORY / "docs" / "limits.py"))["text"]()
    kept = (REPOSITORY / "docs" / "LIMITS.md").read_text(encoding="utf-8")
    assert kept == made, "docs/LIMITS.md is out of date: python docs/limits.py"
    for bound in ("| `BODY_BYTES` | 4 MiB |", "| `clients.connections` | 16,384 |", "| `MAX_TTL_MS` | 30 days |"):
        assert bound in kept
