"""The page says what was run, and of what was not that it was not."""

from __future__ import annotations

from tests.proof.page import Figures, page


def test_what_was_not_run_has_no_figure() -> None:
    text = page(Figures("2026-01-02", "abc"))
    assert text.count("Not run.") == 4 and "**no**" in text and "Every figure is of one run" in text
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
            {"nodes": 3, "seconds": 90, "checked": 5_678, "open": 0, "faults": {"isolate": 2}, "frames": {"lost": 7},
             "longest_gap_s": 1.5}
        ],
    )  # fmt: skip
    text = page(figures)
    assert "Not run." not in text
    assert "| registers | 9 | 2.00 | 10 | 3 | 1,234 | 0 |" in text and "one way 5" in text
    assert "| forget it | locks | linearizable | 3 |" in text
    assert "1 named points" in text and "| journal | pwrite |" in text
    assert "| 3 | 1.5 | 5,678 | 0 | 2 | 1.5 s |" in text and "isolate 2" in text and "lost 7" in text


def test_parts_that_did_not_run_together_are_not_called_one_run() -> None:
    text = page(Figures("2026-01-02", "abc", apart={"planted": "2026-01-01 10:00"}))
    assert "Put together from runs" in text and "planted until 2026-01-01 10:00" in text and "of one run" not in text


def test_a_part_that_failed_is_named() -> None:
    simulation = {"seeds": {"locks": 1}, "counts": {"locks": {}}, "failed": [["locks", 3, "fencing"]], "seconds": 1}
    text = page(Figures("2026-01-02", "abc", simulation=simulation, failed=["simulation"]))
    assert "Violations found: 1; **parts that failed: simulation**." in text
