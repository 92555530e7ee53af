"""A short run of the real thing: three processes, a kill, a cut and corrupted frames, histories checked, a chart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.robustness.chart import draw
from tests.robustness.run import Robustness

KINDS = ("kill -9", "isolate", "corrupt frames")
SECONDS = 5.0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_histories_under_faults_are_linearizable(tmp_path: Path) -> None:
    run = Robustness(tmp_path, 3, seed=5, clients=4, say=print, kinds=KINDS)
    figures = asyncio.run(run.run(SECONDS))
    print(figures.told())
    assert figures.checked > 50 and figures.open == 0
    assert figures.faults and figures.frames["frames"] > 100
    assert figures.counts["acquire granted"] > 10 and figures.counts["read held"] + figures.counts["read free"] > 5
    chart = tmp_path / "chart.html"
    draw(chart, "a short run", run.record, figures.faults, run.names)
    assert all(fault.kind in chart.read_text() for fault in figures.faults)
