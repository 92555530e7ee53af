"""What failed is told as such: in the headline, in its section, and in the goals that depend on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.fuzz.decoders import Decoder
from tests.fuzz.running import row_of
from tests.proof.failover import silent_for
from tests.proof.figures import NAMES, Figures
from tests.proof.page import page
from tests.proof.test_page import run_of

FLIPS = {"counts": {"fault bit_flip": 1_005, "fault flips that were noticed": 1_001, "seeds": 1}, "failed": []}
PORTS = {
    "reached": True, "bytes": 1, "seconds": 1, "least_bytes_an_operation": 104_857_600, "operations": 1,
    "port_bytes": {"peer": 104_857_600, "gRPC": 104_857_600}, "answers": {}, "wrong_5xx": 0, "untyped": [],
    "unchanged": {"strangers": True}, "peak_ratio": 1.0, "tracebacks": 0, "library_tracebacks": 0,
}  # fmt: skip
CLUSTER = {
    "name": "3 nodes", "seed": 7, "seconds": 90, "clients": 48, "operations_of_keys": 9_000_000, "checked": 250_000,
    "changes": 456, "open": 0, "not_run": {}, "failovers": 2, "faults": {}, "frames": {}, "counts": {}, "outages": [],
    "checker_us_each": 7.5, "failover_p50_s": 0.9, "failover_p99_s": 1.1, "longest_outage_s": 1.5, "violation": "",
    "chart": "", "lease_claims": 9, "kept": 8, "digest_revision": 7, "noticed": {"hand-over": 1},
    "short_ended": {"locks": 1, "leases": 2, "sessions": 3},
}  # fmt: skip
SPACED = ("kill -9", "stop and continue", "hand-over", "isolate", "one way", "ring", "bridge", "flapping link")
PROXIED = (
    *SPACED, "kill -9 of all", "kill -9 in a snapshot", "restart", "slow and lossy links", "corrupt frames",
    "truncated frames", "throttled links", "full disk", "flipped bit",
)  # fmt: skip


def cluster_of(name: str, kinds: Iterable[str], **noticed: int) -> dict[str, Any]:
    """One that was shown all that it is to be shown, once."""
    told = {what.replace("_", " "): number for what, number in noticed.items()}
    return {**CLUSTER, "name": name, "faults": dict.fromkeys(kinds, 1), "noticed": {"hand-over": 1, **told}}


CLUSTERS = [
    cluster_of("3 nodes", PROXIED, full_disk=1, flipped_bit=1),
    cluster_of("5 nodes", [*PROXIED, "replace a member"], full_disk=1, flipped_bit=1, members_replaced=1),
    cluster_of("3 nodes in namespaces", SPACED),
    cluster_of("5 nodes in namespaces", SPACED),
]
"""Together just as many requests as are wanted."""


def verdicts(text: str, goal: str) -> list[str]:
    return [line.split(" | ")[-1].rstrip(" |") for line in text.splitlines() if line.startswith(f"| {goal}")]


def test_a_goal_that_older_sources_reached_says_so() -> None:
    for run, verdict in (
        (run_of(), "yes"),
        (run_of(same=False), "yes, with older sources"),
        (run_of(passed=False), "**no**, its part failed"),
    ):
        assert verdicts(page(Figures("", "", {"flips": run}, flips=FLIPS)), "flipped bits") == [verdict]
    missed = {**FLIPS, "failed": [["locks", 3, "durable"]]}
    text = page(Figures("", "", {"flips": run_of(same=False)}, flips=missed))
    assert verdicts(text, "flipped bits") == ["**no**"] and "**Not so in 1 runs**: locks 3 durable." in text


def test_a_part_that_failed_without_figures_was_run_all_the_same() -> None:
    text = page(Figures("", "", {"scale": run_of(passed=False)}))
    assert text.count("**Failed, and left no figures.**") == 1 and "| failed | see Scale | **no** |" in text
    assert "**parts that failed: scale**" in text and "scale" not in text.partition("not run: ")[2].partition(".")[0]


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("seeds", {"seeds": 251, "hours": 5.25, "minutes": 4.5, "failed": ["tests/sim/test_seeds.py::test_locks"]}),
        ("planted", [["forget it", "locks", "NOT FOUND", 60]]),
        ("failpoints", {"fired": [["journal.pwrite", "crash"]], "left": [["journal.pwrite", "error"]]}),
        ("fuzz", [{"decoder": "http-json", "seed": 1, "broken": "it ended with KeyError"}]),
        ("ports", {**PORTS, "reached": False}),
        ("ports", {**PORTS, "reached": False, "wrong_5xx": 1}),
        ("ports", {**PORTS, "reached": False, "tracebacks": 1}),
        ("scale", {"waiters": {"goal": "in order", "reached": False, "seconds": 31}}),
        ("robustness", [{**CLUSTER, "violation": "linearizable: 0/7 (I3)"}]),
    ],
)
def test_what_any_part_says_went_wrong_is_in_the_headline(part: str, found: Any) -> None:
    text = page(Figures("", "", **{part: found}))
    assert f"Violations found: 1 ({part} 1); not run: " in text and "| yes |" not in text


def test_every_part_has_figures() -> None:
    assert set(NAMES) == set(Figures("", "").missing)


def test_a_violation_on_a_real_cluster_is_told_and_misses_the_goal() -> None:
    good = page(Figures("", "", robustness=CLUSTERS))
    assert verdicts(good, "requests checked") == ["yes"] and "ended at" not in good
    text = page(Figures("", "", robustness=[*CLUSTERS[1:], {**CLUSTERS[0], "violation": "linearizable:\n`0/7`"}]))
    assert "**3 nodes, seed 7, ended at:** `linearizable: '0/7'`" in text
    assert verdicts(text, "requests checked") == ["**no**"]


def test_requests_count_and_not_the_keys_they_tell_of() -> None:
    text = page(Figures("", "", robustness=[*CLUSTERS[1:], {**CLUSTERS[0], "checked": 249_999}]))
    assert "| 999,999 requests (36,000,000 operations of keys); 4 clusters | 1,000,000 requests, none undec" in text
    assert verdicts(text, "requests checked") == ["**no**"]


def test_a_kind_of_cluster_that_could_not_run_misses_the_goal() -> None:
    text = page(Figures("", "", robustness=[{**each, "not_run": {"a fifth": "there is no root"}} for each in CLUSTERS]))
    assert verdicts(text, "requests checked") == ["**no**"]


def test_what_broke_a_decoder_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(raw: bytes) -> None:
        if b"\xff" in raw:
            raise IndexError("planted")

    decoder = Decoder("fragile", lambda: [bytes(30)], lambda: fragile, (ValueError,))
    monkeypatch.setattr("tests.fuzz.running.DECODERS", [decoder])
    row = row_of("fragile", 1 << 20, 1)
    assert row["bytes"] < 1 << 20 and "planted" in row["broken"]
    text = page(Figures("", "", fuzz=[row]))
    assert "**Broke:** `fragile ended with IndexError: planted" in text and "**and broke**" in text
    assert verdicts(text, "damaged input to each of what") == ["**no**"]


def test_a_client_that_waits_is_seen_beside_others_that_do_not() -> None:
    asked_s = 10.0
    busy, stalled = [asked_s + each / 100 for each in range(-100, 200)], [9.9, 10.7, 11.9]
    assert round(silent_for(busy, asked_s, 12.0), 3) == 0.01
    assert round(silent_for(stalled, asked_s, 12.0), 3) == 1.2
    assert silent_for([], asked_s, 12.0) >= 2.0  # one that was told nothing at all


def test_flips_that_counted_nothing_before_they_failed_have_a_page() -> None:
    text = page(Figures("", "", {"flips": run_of(passed=False)}, flips={"counts": {}, "failed": [["locks", 3, "x"]]}))
    assert verdicts(text, "flipped bits") == ["**no**"] and "| 0; 1 | 1,000; 0 |" in text
    assert "0 bits were flipped" in text and "**Not so in 1 runs**: locks 3 x." in text


def test_what_a_part_of_scale_broke_at_is_on_the_page() -> None:
    broken = {"goal": "to come to its end", "reached": False, "seconds": 3.5, "why": "OSError: `a`\n| b"}
    text = page(
        Figures("", "", scale={"waiters": {"goal": "in order", "reached": True, "seconds": 31}, "load": broken})
    )
    assert (
        "**load ended at:** `OSError: 'a' | b`" in text
        and "| load | to come to its end | **no** | seconds 3.5 |" in text
    )
    assert verdicts(text, "a great deal at once: load") == ["**no**"]
    assert verdicts(text, "a great deal at once: waiters") == ["yes"]
