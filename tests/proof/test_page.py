"""The page says what was run, and of what was not that it was not."""

from __future__ import annotations

from tests.proof.page import Figures, page


def test_what_was_not_run_has_no_figure() -> None:
    text = page(Figures("2026-01-02", "abc"))
    assert text.count("Not run.") == 5 and "**no**" in text and "Every figure is of one run" in text
    assert "Violations found: 0." in text and "2026-01-02" in text and "abc" in text


def test_every_figure_is_on_the_page() -> None:
    counts = {"simulated ms": 7_200_000, "entries": 10, "leaders": 3, "operations checked": 1_234, "fault one_way": 5}
    figures = Figures(
        "2026-01-02",
        "abc",
        simulation={"seeds": {"registers": 9}, "counts": {"registers": counts}, "failed": [], "seconds": 60},
        planted=[["forget it", "locks", "linearizable", 3]],
        failpoints={"fired": [["journal.pwrite", "crash"], ["journal.pwrite", "error"]], "left": []},
        robustness=[
            {"nodes": 3, "seconds": 90, "clients": 48, "checked": 5_678, "requests": 1_234, "open": 0, "failovers": 2,
             "faults": {"isolate": 2}, "frames": {"lost": 7}, "counts": {"locks: read free": 99, "requests": 1_234},
             "checker_us_each": 7.5, "failover_p50_s": 0.9, "failover_p99_s": 1.1, "longest_outage_s": 1.5,
             "outages": [{"seconds": 1.5, "faults": ["isolate at n2"]}]}
        ],
        chaos={
            "nodes": [3, 5], "seconds": 540, "violations": [], "longest_gap_s": 3.25, "operations": {"lock": 4_321},
            "faults": {"fill_a_disk": {"times": 2, "longest_gap_s": 0.75}}, "counts": {"tasks done": 8_765},
        },
    )  # fmt: skip
    text = page(figures)
    assert "Not run." not in text
    assert "| registers | 9 | 2.00 | 10 | 3 | 1,234 | 0 |" in text and "one way 5" in text
    assert "| forget it | locks | linearizable | 3 |" in text
    assert "1 named points" in text and "| journal | pwrite |" in text
    assert "| 3 | 1.5 | 5,678 | 1,234 | 0 | 2 | 7.5 |" in text and "isolate 2" in text and "lost 7" in text
    assert "| 3 | 2 | 0.9 s | 1.1 s | 1.5 s | isolate at n2 |" in text and "locks: read free 99" in text
    assert "| fill a disk | 2 | 0.75 s |" in text and "3 and 5 nodes for 9.0 minutes" in text
    assert "lock 4,321" in text and "tasks done 8,765" in text


def test_parts_that_did_not_run_together_are_not_called_one_run() -> None:
    text = page(Figures("2026-01-02", "abc", apart={"planted": "2026-01-01 10:00"}))
    assert "Put together from runs" in text and "planted until 2026-01-01 10:00" in text and "of one run" not in text


def test_a_part_that_failed_is_named() -> None:
    simulation = {"seeds": {"locks": 1}, "counts": {"locks": {}}, "failed": [["locks", 3, "fencing"]], "seconds": 1}
    text = page(Figures("2026-01-02", "abc", simulation=simulation, failed=["simulation"]))
    assert "Violations found: 1; **parts that failed: simulation**." in text


def test_a_violation_of_the_chaos_run_counts() -> None:
    chaos = {
        "nodes": [3], "seconds": 60, "violations": ["x was cleaned up twice"], "longest_gap_s": 1.0, "operations": {},
        "faults": {}, "counts": {},
    }  # fmt: skip
    assert "Violations found: 1." in page(Figures("2026-01-02", "abc", chaos=chaos))
