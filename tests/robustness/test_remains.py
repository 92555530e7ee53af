"""What a run leaves behind: nothing that the next one stumbles over, and a chart though it ended before it began."""

from __future__ import annotations

from pathlib import Path

from tests.robustness.chart import draw
from tests.robustness.namespaces import why_not
from tests.robustness.record import Record


def test_namespaces_can_be_made_again_at_once() -> None:
    assert len({why_not() for _ in range(3)}) == 1


def test_a_run_in_which_nobody_led_has_a_chart(tmp_path: Path) -> None:
    chart = tmp_path / "chart.html"
    draw(chart, "nothing came of it", Record(), [], ["n1", "n2"])
    assert "nothing came of it" in chart.read_text()
