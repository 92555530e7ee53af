"""A short run of the real thing: three processes, a kill, a cut and corrupted frames, histories checked, a chart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.robustness.chart import draw
from tests.robustness.run import KINDS, Robustness

FAULTS = ("kill -9", "isolate", "corrupt frames")
SECONDS = 5.0
CLIENTS = len(KINDS)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_histories_under_faults_are_linearizable(tmp_path: Path) -> None:
    run = Robustness(tmp_path, 3, seed=5, clients=CLIENTS, say=print, kinds=FAULTS)
    figures = asyncio.run(run.run(SECONDS))
    print(figures.told(), dict(figures.counts))
    assert figures.checked > 200 and figures.totals.slices >= 2
    assert figures.faults and figures.frames["frames"] > 100
    for done in ("locks: acquire granted", "locks: read free", "leases: acquire leased", "leases: renew ok",
                 "leases: read active", "bounded reads", "leases: renew gone", "short locks and leases",
                 "changes checked", "reads checked"):  # fmt: skip
        assert figures.counts[done] > 0, done
    assert all(figures.ended[kind] > 0 for kind in ("locks", "leases", "sessions")), figures.ended
    assert figures.kept > 0 and figures.digest_revision > 0 and figures.terms > 0 and figures.lease_claims > 0
    chart = tmp_path / "chart.html"
    draw(chart, "a short run", run.record, figures.faults, run.names)
    assert all(fault.kind in chart.read_text() for fault in figures.faults)
