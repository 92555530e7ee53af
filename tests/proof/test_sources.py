"""A part is run again when anything has changed that decides what it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.proof.__main__ import PARTS, PRODUCT, SIMULATED
from tests.proof.sources import hash_with, imported
from tests.sim.ledger import REPOSITORY, sources_hash


def counted(name: str) -> set[str]:
    return {str(path.relative_to(REPOSITORY)) for path in PARTS[name].paths()}


def test_the_sources_of_a_part_are_the_product_and_what_decides_what_it_does() -> None:
    assert len({part.sources() for part in PARTS.values()}) > 5
    assert all((REPOSITORY / folder).is_dir() for part in PARTS.values() for folder in part.folders)
    assert all((REPOSITORY / place).exists() for part in PARTS.values() for place in part.files)


def test_those_of_the_simulation_are_its_ledgers() -> None:
    assert PARTS["simulation"].sources() == sources_hash((*PRODUCT, *SIMULATED), tests=False) == sources_hash()


@pytest.mark.parametrize(
    ("part", "files"),
    [
        ("chaos", ["docker-compose.yml", "Dockerfile", "docker/build-image", "configs/docker.toml"]),
        (
            "robustness",
            ["tests/chaos/digests.py", "bench/wire.py", "tests/waiting.py", "tests/robustness/shortones.py"],
        ),
        ("scale", ["tests/proof/scale_loads.py", "tests/robustness/record.py", "tests/processes/register_node.py"]),
        ("failover", ["tests/proof/failover.py", "tests/robustness/record.py", "bench/failover.py"]),
        ("fuzz", ["tests/machine/__init__.py", "tests/storage/test_corruption.py", "tests/sim/disk.py"]),
        ("seeds", ["tests/sim/test_seeds.py", "tests/machine/driver.py", "tests/conftest.py"]),
    ],
)
def test_what_a_part_imports_from_elsewhere_counts(part: str, files: list[str]) -> None:
    assert set(files) <= counted(part)


def test_what_it_does_not_import_does_not_count() -> None:
    assert not any(name.startswith(("tests/chaos/clients", "tests/fuzz")) for name in counted("robustness"))
    assert "tests/proof/page.py" not in counted("scale")


def test_a_file_that_changes_changes_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.proof.sources.REPOSITORY", tmp_path)
    path = tmp_path / "Dockerfile"
    path.write_text("FROM a")
    before = hash_with("product", [path])
    path.write_text("FROM b")
    assert len({before, hash_with("product", [path]), hash_with("other", [path]), hash_with("other", [])}) == 4


STARTED = re.compile(r'"-m",\s*"((?:tests|bench)\.[\w.]+)"')
"""Programs of ours; those of the product count for every part."""


def started(paths: set[Path]) -> set[str]:
    """All programs that these start, and those that such programs start."""
    found: set[str] = set()
    while more := {name for path in paths for name in STARTED.findall(path.read_text())} - found:
        found |= more
        paths = paths | imported(found)
    return found


@pytest.mark.parametrize("part", PARTS)
def test_programs_that_a_part_starts_count(part: str) -> None:
    folders = {path for folder in PARTS[part].folders for path in (REPOSITORY / folder).rglob("*.py")}
    paths = {path for path in PARTS[part].paths() if path.suffix == ".py"}
    assert imported(started(paths)) <= paths | folders


def test_programs_that_are_started_are_found() -> None:
    assert {"tests.processes.register_node", "bench.overload"} <= started(PARTS["scale"].paths())
    assert started(PARTS["chaos"].paths()) >= {"tests.chaos.clients"}
