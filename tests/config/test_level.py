"""`level_at_most`: which levels of the state a node takes part in (docs/OPERATIONS.md, upgrades)."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config import ConfigError, load_config, parse_config
from coordinator.machine.levels import LEVEL, OLDEST
from tests.config.test_config import CONFIGS, minimal, refusal


def test_a_node_knows_all_levels_of_its_release_unless_told_otherwise() -> None:
    assert parse_config(minimal(), Path("/")).known_level == LEVEL
    for level in range(OLDEST, LEVEL + 1):
        assert parse_config(minimal(level_at_most=level), Path("/")).known_level == level


@pytest.mark.parametrize("level", [OLDEST - 1, LEVEL + 1, -1])
def test_a_level_that_the_release_does_not_know_is_refused(level: int) -> None:
    assert f"this release knows levels {OLDEST} to {LEVEL}; name one of them" in refusal(minimal(level_at_most=level))


@pytest.mark.parametrize("value", ["1", True, 1.0])
def test_it_is_a_whole_number(value: object) -> None:
    assert "level_at_most" in refusal(minimal(level_at_most=value))


def test_the_environment_overrides_the_file() -> None:
    path = CONFIGS / "dev-1.toml"
    assert load_config(path, {}).known_level == LEVEL
    assert load_config(path, {"HOLDFAST_LEVEL_AT_MOST": str(OLDEST)}).known_level == OLDEST
    for text in ("one", "-1", "1.0", str(LEVEL + 1)):
        with pytest.raises(ConfigError, match=r"LEVEL_AT_MOST|level_at_most"):
            load_config(path, {"HOLDFAST_LEVEL_AT_MOST": text})


def test_the_line_of_the_example_counts_when_it_is_uncommented(tmp_path: Path) -> None:
    """It stands above the first table: below one it would be a key of that table."""
    text = (CONFIGS / "production.toml").read_text()
    assert text.index("# level_at_most = ") < text.index("\n[")
    (tmp_path / "secret").write_text("x" * 32)
    (tmp_path / "secret").chmod(0o600)
    node = 'node_id = "n1"\ncluster_id = "c"\ndata_dir = "data"\nhttp = "127.0.0.1:1"\npeer = "127.0.0.1:2"\n'
    (tmp_path / "node.toml").write_text(f'{node}secret_file = "secret"\nlevel_at_most = 1\n[timing]\n')
    assert load_config(tmp_path / "node.toml", {}).known_level == OLDEST
