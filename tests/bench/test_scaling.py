"""docs/SCALING.md has no figure that is not in bench/results, and its formulas give what they say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.load import RESULTS
from bench.rounds import OURS
from bench.scaling import HEADROOM, HEARTBEAT_S, NOT_MEASURED, RENDERED, Model, Results, Unmeasured, render
from coordinator.machine.limits import MAX_LEASES


def row(what: str, **figures: float) -> dict[str, Any]:
    told = {"leases": 5_000_000, "bytes_sent_each": 8.0, "bytes_answered_each": 0.5}
    return {"what": what, "system": OURS, "figures": {key: {"median": value} for key, value in figures.items()}, **told}


def write(place: Path, *, quick: bool = False) -> None:
    renewals = row(
        "renewals x1,000, 5,000,000 leases",
        per_second=2e6, cpu_us_each=0.4, leader_cpu_us_each=0.2, loopback_bytes_each=28.5,
    )  # fmt: skip
    document = {
        "quick": quick,
        "machine": {"cores": 2, "cpu": "x", "utc": "then", "load_before": [0.1], "sync_8k_ms": {"p50": 0.5}},
        "rows": [renewals, row("sessions of 10,000, 5,000,000 leases", heartbeats_per_second=5_000)],
        "figures": {
            "bytes_a_lease": [90.0, 95.0, 91.0],
            "snapshots": {"follower": {"seconds": 4.0}},
            "restart": {"ready_s": 6.0},
        },
    }
    (place / "millions.json").write_text(json.dumps(document))


def test_the_formulas(tmp_path: Path) -> None:
    write(tmp_path)
    model = Model(Results(tmp_path))
    assert model.by_cpu() == pytest.approx(5e6)
    assert model.follower_us() == pytest.approx(0.1)
    assert model.replicated_bytes() == pytest.approx(20)
    assert model.by_link(3) == pytest.approx(10e9 / 8 / 20)
    assert model.by_link(5) == pytest.approx(model.by_link(3) / 2)
    assert model.first(3) == "CPU"
    assert model.carried(3) == pytest.approx(HEADROOM * 5e6)
    assert model.clusters_by_size(500_000_000) == math.ceil(500_000_000 / MAX_LEASES)
    assert model.clusters(500_000_000) == math.ceil(500_000_000 / HEARTBEAT_S / (HEADROOM * 5e6))
    assert model.snapshot_at(50_000_000, 2) == pytest.approx(20)


def test_every_place_is_filled_and_what_is_missing_is_said(tmp_path: Path) -> None:
    empty = render(tmp_path)
    write(tmp_path)
    filled = render(tmp_path)
    assert "{{" not in empty + filled
    assert filled.count(NOT_MEASURED) < empty.count(NOT_MEASURED)
    assert "2,000,000" in filled and "2,000,000" not in empty


def test_a_quick_run_is_no_result(tmp_path: Path) -> None:
    write(tmp_path, quick=True)
    with pytest.raises(Unmeasured):
        Model(Results(tmp_path)).renewals()


def test_the_document_is_what_the_results_say() -> None:
    assert RENDERED.read_text() == render(RESULTS), "run python -m bench.scaling"
