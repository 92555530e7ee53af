"""Commands for who works on the sources, typed in a clone of them: there they may write what they write."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs.conftest import Terminal
from tests.docs.fresh import clone

QUICK = "--quick --only watchers"
TYPED = {
    "make help": "",
    "make docs": "make docs && grep -q Holdfast site/index.html",
    "make sim SEED=… WORKLOAD=…": "make sim SEED=3 WORKLOAD=locks",
    "make sim SEED=… WORKLOAD=… SHARED=1": "make sim SEED=97 WORKLOAD=graph SHARED=1",
    # As it is, of the shortest part.
    "make proof": "make proof PARTS=failpoints && git diff --stat docs/PROOF.md",
    # Everything is what this is a part of: one file of it, and ruff and mypy are run beside it.
    "make test": "make --old-file lint test TEST_JOBS=1 PYTEST_ARGS=tests/docs/test_site.py",
    ". .venv/bin/activate": ". .venv/bin/activate; holdfast --help",
    "python docs/limits.py": "python docs/limits.py && git diff --exit-code docs/LIMITS.md && wc -l docs/LIMITS.md",
    "python -m bench.scaling": "python -m bench.scaling 2>&1",
    'make bench BENCH_ARGS="--tables"': 'make bench BENCH_ARGS="--tables" 2>&1',
    # Minutes each. The words are read by the programs themselves, and one part is measured below.
    "make bench": 'make bench BENCH_ARGS="--list"',
    "holdfast bench --only locks lookups": "holdfast bench --only locks lookups --list",
    "python -m bench.locks --rounds 5": "python -m bench.locks --rounds 5 --help",
    "python -m bench.tombstones": "python -m bench.tombstones --quick --only masks --mask-trials 2000",
    'make bench BENCH_ARGS="--quick"': f'make bench BENCH_ARGS="{QUICK}" 2>&1',
    # An hour with 100 MiB a decoder.
    "python -m tests.fuzz --bytes 100M": "python -m tests.fuzz --bytes 64K --decoder gossip",
    # What it finds is for a machine that does nothing else.
    "python -m tests.security": "python -m tests.security 1 || test $? -eq 1",
    "python -m tests.ui.load --leases 5000000": "python -m tests.ui.load --leases 2000 --seconds 0.2",
    "python -m tests.ui.pictures": "python -m tests.ui.pictures --seconds 3 && git diff --stat docs/images",
    # Without an index: what is named must be here.
    "pip install .": "pip install --no-index --no-deps --no-build-isolation --target made . && ls made/coordinator/ui",
    "pip install '.[grpc]'": "pip install --no-index --no-deps --no-build-isolation --target extra '.[grpc]' 2>&1",
    # What it looks up is on the Internet; the file it reads is read, and every package of it is here.
    "pip-audit -r requirements.lock": "pip install --no-index --no-deps --dry-run -r requirements.lock",
}
"""What is typed: as printed where nothing is said, else the same with less to do."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    place = clone(tmp_path_factory.mktemp("tree"), installed=True)
    path = f"{place}/.venv/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return Terminal(place, {}, {"PYTHONPATH": str(place), "PATH": path})


@pytest.mark.parametrize("command", TYPED)
def test_it_works(tree: Terminal, command: str) -> None:
    assert tree.told(TYPED[command] or command).strip(), command
