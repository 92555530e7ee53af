"""The page says what was run, and of what was not that it was not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.proof.__main__ import PARTS, Part, Proof
from tests.proof.directed import GUARDS, Verdicts
from tests.proof.figures import Figures
from tests.proof.goals import missed
from tests.proof.page import page


def run_of(**other: Any) -> dict[str, Any]:
    common = {"passed": True, "sources": "sources", "same": True, "commit": "abc", "minutes": 1.5, "failed_at": []}
    return {**common, "when": "2026-01-01 10:00", **other}


def simulation_of(
    name: str, seeds: int, counts: dict[str, int], failed: list[list[Any]] | None = None
) -> dict[str, Any]:
    return {
        "seeds": {name: seeds}, "counts": {name: counts}, "failed": failed or [], "seconds": 60,
        "cpu_seconds": 2.0 * seeds, "sittings": [{"commit": "abc", "runs": 1}, {"commit": "def", "runs": 8}],
    }  # fmt: skip


def test_what_was_not_run_has_no_figure() -> None:
    text = page(Figures("2026-01-02", "abc"))
    assert text.count("Not run.") == 12 and text.count("| not run | ") == text.count("| **no** |") == 14
    assert "Violations found: 0; not run: simulation, seeds, replay," in text and "2026-01-02" in text and "abc" in text


def test_every_figure_is_on_the_page() -> None:
    counts = {"simulated ms": 7_200_000, "entries": 10, "leaders": 3, "operations checked": 1_234, "fault one_way": 5,
              "operator add committed": 4}  # fmt: skip
    figures = Figures(
        "2026-01-02",
        "abc",
        {"planted": run_of(failed_at=["aaa", "bbb"])},
        simulation=simulation_of("registers", 9, counts),
        seeds={"seeds": 251, "hours": 5.25, "minutes": 4.5, "failed": []},
        replay={"runs": 28, "different": []},
        flips={"counts": {"fault bit_flip": 1_105, "fault flips that were noticed": 1_004, "seeds": 9}, "failed": []},
        fuzz=[{"decoder": "http-json", "bytes": 104_857_600, "inputs": 7_654, "taken": 32, "digests": 5,
               "slowest_ms": 1.5, "resident_before_kib": 1_000, "resident_peak_kib": 1_250}],
        ports={"reached": True, "bytes": 2_000_000_000, "seconds": 90, "least_bytes_an_operation": 104_857_600,
               "operations": 91, "port_bytes": {"peer": 105_000_000, "gRPC": 106_000_000}, "answers": {"400": 77},
               "wrong_5xx": 0, "untyped": [], "unchanged": {"strangers": True}, "peak_ratio": 1.18, "tracebacks": 0,
               "library_tracebacks": 210},
        scale={"waiters": {"goal": "in order", "reached": True, "seconds": 31, "grants": 200}},
        failover={
            "kills": {"times": 100, "p50_s": 0.72, "p99_s": 1.4, "longest_s": 1.5},
            "hand_overs": {"times": 20, "p50_s": 0.05, "p99_s": 0.2, "longest_s": 0.25, "calls": 9_876, "failed": []},
        },
        planted=[["forget it", "locks", "linearizable", 3]],
        directed=[{"guards": ["one_vote"], "harm": "two lead", "test": "tests/a.py::test_two", "seen": True,
                   "with_guard": 3, "harmless": True}],
        failpoints={"fired": [["journal.pwrite", "crash"], ["journal.pwrite", "error"]], "left": []},
        robustness=[
            {"name": "3 nodes", "seconds": 90, "clients": 48, "operations_of_keys": 5_678,
             "checked": 1_234, "changes": 456, "open": 0, "not_run": {}, "violation": "", "short_ended": {"locks": 67},
             "failovers": 2, "faults": {"isolate": 2}, "frames": {"lost": 7},
             "counts": {"locks: read free": 99, "requests": 1_234},
             "lease_claims": 9, "chart": "3-nodes.png", "checker_us_each": 7.5,
             "failover_p50_s": 0.9, "failover_p99_s": 1.1, "longest_outage_s": 1.5,
             "outages": [{"seconds": 1.5, "faults": ["isolate at n2"]}]}
        ],
        chaos={
            "nodes": [3, 5], "seconds": 540, "violations": [], "longest_gap_s": 3.25, "operations": {"lock": 4_321},
            "faults": {"fill_a_disk": {"times": 2, "longest_gap_s": 0.75}}, "counts": {"tasks done": 8_765},
            "looked_at": {"I9": {"facts": 355}},
        },
    )  # fmt: skip
    text = page(figures)
    assert "Not run." not in text and "not run" not in text
    assert "| planted | 2026-01-01 10:00 | abc | 1.5 | yes | yes | aaa, bbb |" in text and "Not all of them" not in text
    assert "p50 0.72 s, p99 1.4 s of 100" in text and "longest 0.25 s of 20; 0 failed of 9,876" in text
    assert "1,105 bits" in text and "1,004 were noticed" in text and "| http-json | 105 | 7,654 | 32 | 5 |" in text
    assert "100 MiB to each of 1; 1.25 ×; 0" in text and "28 runs of all workloads" in text
    assert "| 251 seeds, 5.25 h (most of it of slow clusters) in 4.5 min; 0 |" in text
    assert "Violations found: 0.\n" in text
    assert "2 sittings at abc, def" in text and "30 seeds a minute" in text
    assert "| registers | 9 | 2.00 | 10 | 3 | 1,234 | 0 |" in text and "one way 5" in text and "add committed 4" in text
    assert "| forget it | locks | linearizable | 3 |" in text
    assert "| one_vote | two lead | tests/a.py | yes | 3 | yes |" in text
    assert "1 named points" in text and "| journal | pwrite |" in text
    assert "100 MiB to each of 93; 1.18 ×; 0" in text and "400: 77; 0 of 5xx" in text and "strangers yes" in text
    assert "logs: 0, and 210 that" in text and "](proof/3-nodes.png)" in text
    assert "| waiters | in order | yes | seconds 31, grants 200 |" in text and "| I9 | facts 355 |" in text
    assert "| 3 nodes | 1.5 | 5,678 | 1,234 | 456 | 0 | 2 | 7.5 |" in text and "isolate 2" in text and "lost 7" in text
    assert "| 3 nodes | 2 | 0.9 s | 1.1 s | 1.5 s | isolate at n2 |" in text and "locks: read free 99" in text
    assert "| fill a disk | 2 | 0.75 s |" in text and "3 and 5 nodes for 9.0 minutes" in text
    assert "| 1,234 requests (5,678 operations of keys); 1 clusters; **not shown**: 3 nodes: kill -9, " in text
    assert "; 5 nodes; 3 nodes in namespaces; 5 nodes in namespaces | 1,000,000 requests, none undecided" in text
    assert "gone from every node: locks 67." in text and "lock 4,321" in text and "tasks done 8,765" in text


def test_parts_of_other_sources_are_told() -> None:
    text = page(Figures("2026-01-02", "abc", {"planted": run_of(same=False), "fuzz": run_of()}))
    assert "Not all of them ran with the sources" in text
    assert "| planted | 2026-01-01 10:00 | abc | 1.5 | yes | **no** |  |" in text


def test_a_part_that_failed_is_named() -> None:
    simulation = simulation_of("locks", 1, {}, [["locks", 3, "fencing"]])
    text = page(Figures("2026-01-02", "abc", {"simulation": run_of(passed=False)}, simulation=simulation))
    assert "Violations found: 1 (simulation 1); **parts that failed: simulation**, which" in text


def test_a_slow_kill_a_failed_call_or_a_lost_bit_misses_its_goal() -> None:
    spread = {"times": 100, "p50_s": 0.7, "p99_s": 1.0, "longest_s": 0.2}
    good = {"kills": spread, "hand_overs": {**spread, "calls": 5, "failed": []}}
    assert page(Figures("", "", failover=good)).count("| yes |") == 2
    for bad in (
        {**good, "kills": {**spread, "p99_s": 2.6}},
        {**good, "kills": {**spread, "times": 99}},
        {**good, "hand_overs": {**spread, "calls": 5, "failed": ["x"]}},
        {**good, "hand_overs": {**spread, "longest_s": 0.31, "calls": 5, "failed": []}},
    ):
        assert page(Figures("", "", failover=bad)).count("| yes |") == 1
    flips = {"counts": {"fault bit_flip": 1_100, "fault flips that were noticed": 999, "seeds": 1}, "failed": []}
    assert "| yes |" not in page(Figures("", "", flips=flips))
    slow = {"seeds": 251, "hours": 5.25, "minutes": 10.5, "failed": []}
    assert "| yes |" not in page(Figures("", "", seeds=slow))
    broken = {"seeds": 251, "hours": 5.25, "minutes": 4.5, "failed": ["tests/sim/test_seeds.py::test_locks"]}
    assert "| yes |" not in page(Figures("", "", seeds=broken))
    assert "| yes |" in page(Figures("", "", seeds={**broken, "failed": []}))
    assert "| yes |" not in page(Figures("", "", replay={"runs": 3, "different": ["locks 1 a"]}))


def test_a_guard_whose_absence_shows_nothing_or_whose_presence_does_not_help_misses_the_goal() -> None:
    told = {"harm": "x", "test": "tests/a.py::test_x", "seen": True, "with_guard": 1, "harmless": True}
    rows = [{"guards": [guard], **told} for guard in sorted(GUARDS)]
    assert f"| {len(GUARDS)} | {len(GUARDS)} | yes |" in page(Figures("", "", directed=rows))
    for wrong in ({"seen": False}, {"harmless": False}):
        text = page(Figures("", "", directed=[*rows[1:], {**rows[0], **wrong}]))
        assert f"| {len(GUARDS) - 1} | {len(GUARDS)} | **no** |" in text and "Violations found: 1 (directed 1)" in text


def test_a_directed_test_is_judged_by_all_that_pytest_ran_of_it() -> None:
    verdicts = Verdicts()
    outcomes = [("a::x[1]", "call", "passed"), ("a::x[2]", "call", "failed"), ("a::y", "call", "passed"),
                ("a::z", "setup", "passed")]  # fmt: skip
    for test, when, outcome in outcomes:
        verdicts.pytest_runtest_logreport(
            pytest.TestReport(test, ("a", 1, test), {}, outcome, None, when)  # type: ignore[arg-type]
        )
    assert [verdicts.seen(test) for test in ("a::x", "a::y", "a::z", "a::none")] == [False, True, False, False]


def test_the_tests_beside_a_directed_one_show_what_its_guard_does() -> None:
    verdicts = Verdicts()
    verdicts.passed.update({"a.py::test_without_x": 1, "a.py::test_x": 2, "b.py::test_x": 1, "c.py::test_without_y": 1})
    verdicts.failed.update({"a.py::test_without_z": 1, "b.py::test_y": 1})
    told = [verdicts.with_guard(f"{file}.py::test_without_x") for file in "abc"]
    assert told == [(2, True), (1, False), (0, False)]


def test_what_passed_with_these_sources_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Part, "sources", lambda _: "sources")
    (tmp_path / "parts.json").write_text(
        json.dumps({"fuzz": run_of(), "flips": run_of(passed=False), "replay": run_of(), "simulation": run_of()})
    )
    fuzzed = {"bytes": 104_857_600, "resident_before_kib": 1_000, "resident_peak_kib": 1_250}
    (tmp_path / "fuzz.json").write_text(json.dumps([fuzzed]))
    (tmp_path / "replay.json").write_text(json.dumps({"runs": 28, "different": []}))
    simulation = tmp_path / "simulation.json"
    simulation.write_text(json.dumps(simulation_of("locks", 9_999, {})))
    proof = Proof(tmp_path)
    assert [name for name in PARTS if proof.is_done(name)] == ["replay", "fuzz"] and proof.failed == ["flips"]
    simulation.write_text(json.dumps(simulation_of("locks", 10_000, {})))
    assert proof.is_done("simulation")
    (tmp_path / "fuzz.json").write_text(json.dumps([{**fuzzed, "resident_peak_kib": 2_001}]))
    (tmp_path / "replay.json").unlink()
    assert [name for name in PARTS if proof.is_done(name)] == ["simulation"], "the others have missed their goals"
    monkeypatch.setattr(Part, "sources", lambda _: "other sources")
    assert not any(proof.is_done(name) for name in PARTS)


def test_a_run_that_failed_is_still_told_of_after_one_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, sources = iter((1, 0, 0)), iter(("one", "one", "one", "one", "one", "other"))
    monkeypatch.setattr("tests.proof.__main__.subprocess.run", lambda *_, **__: SimpleNamespace(returncode=next(codes)))
    monkeypatch.setattr("tests.proof.__main__.commit", lambda: "abc")
    monkeypatch.setattr(Part, "sources", lambda _: next(sources))
    proof = Proof(tmp_path)
    for _ in range(3):
        proof.run("fuzz", 1.0)
    held = json.loads((tmp_path / "parts.json").read_text())["fuzz"]
    assert held["passed"] and held["failed_at"] == ["abc"]
    assert held["sources"] == "changed while it ran", "what changes under a run is proven by nobody"


def test_a_violation_of_the_chaos_run_counts() -> None:
    chaos = {
        "nodes": [3], "seconds": 60, "violations": ["x was cleaned up twice"], "longest_gap_s": 1.0, "operations": {},
        "faults": {}, "counts": {}, "looked_at": {},
    }  # fmt: skip
    assert "Violations found: 1 (chaos 1); not run" in page(Figures("2026-01-02", "abc", chaos=chaos))


def test_a_goal_that_is_missed_fails_the_command() -> None:
    slow = {"kills": {"times": 100, "p50_s": 0.7, "p99_s": 4.0, "longest_s": 4.0}, "hand_overs": None}
    figures = Figures("", "", {"failover": run_of()}, failover=slow)
    assert len(missed(figures, ("failover",))) == 2 and len(missed(figures, ("failover", "flips"))) == 3
