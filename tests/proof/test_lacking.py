"""What a run on real clusters or containers did not come to misses its goal, and is told."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.chaos.scenarios import ROUND
from tests.proof.figures import Figures
from tests.proof.page import page
from tests.proof.test_failures import CLUSTERS, verdicts

FAULTS = {each.__name__: {"times": 1, "longest_gap_s": 0.5} for each in ROUND}
CHAOS = {
    "nodes": [3, 5], "seconds": 540, "violations": [], "longest_gap_s": 3.25, "operations": {}, "counts": {},
    "faults": FAULTS, "looked_at": {},
}  # fmt: skip


def told(clusters: list[dict[str, Any]]) -> tuple[str, str]:
    """The verdict, and what is told beside it."""
    text = page(Figures("", "", robustness=clusters))
    (row,) = (line for line in text.splitlines() if line.startswith("| requests checked"))
    return verdicts(text, "requests checked")[0], row


@pytest.mark.parametrize("place", range(4))
def test_a_cluster_that_is_not_there_misses_the_goal(place: int) -> None:
    others = [{**each, "checked": 1_000_000} for each in CLUSTERS]
    gone = others.pop(place)
    verdict, row = told(others)
    assert verdict == "**no**" and f"; 3 clusters; **not shown**: {gone['name']} |" in row
    assert told(CLUSTERS)[0] == "yes", "the right verdict otherwise"


@pytest.mark.parametrize(("place", "kind"), [(place, kind) for place in range(4) for kind in CLUSTERS[place]["faults"]])
def test_a_kind_of_fault_that_was_not_played_misses_the_goal(place: int, kind: str) -> None:
    clusters = copy.deepcopy(CLUSTERS)
    del clusters[place]["faults"][kind]
    verdict, row = told(clusters)
    assert verdict == "**no**" and f"; **not shown**: {clusters[place]['name']}: {kind} |" in row


@pytest.mark.parametrize(
    ("place", "name", "nothing", "shown"),
    [
        (0, "kept", 0, "locks and leases of the whole run"),
        (1, "lease_claims", 0, "leader's leases that were told of"),
        (2, "digest_revision", 0, "digests that were compared"),
        (3, "short_ended", {"locks": 1, "leases": 2, "sessions": 0}, "short sessions that ended"),
        (0, "short_ended", 77, "short locks that ended, short leases that ended, short sessions that ended"),
        (0, "noticed", {"hand-over": 1, "full disk": 1}, "flipped bit that was noticed"),
        (1, "noticed", {"hand-over": 1, "full disk": 1, "flipped bit": 1}, "replace a member that was noticed"),
        (2, "noticed", {}, "hand-over that was noticed"),
        (3, "noticed", {"hand-over": 1, "flapping links that were not judged": 1}, "flapping link that was judged"),
    ],
)
def test_a_check_that_had_nothing_to_look_at_misses_the_goal(place: int, name: str, nothing: Any, shown: str) -> None:
    clusters = copy.deepcopy(CLUSTERS)
    clusters[place][name] = nothing
    verdict, row = told(clusters)
    assert verdict == "**no**" and f"; **not shown**: {clusters[place]['name']}: {shown} |" in row
    del clusters[place][name]
    assert told(clusters)[0] == "**no**", "earlier figures do not have it"


def test_some_flapping_links_may_go_without_a_judgement() -> None:
    clusters = copy.deepcopy(CLUSTERS)
    clusters[3]["faults"]["flapping link"] = 2
    clusters[3]["noticed"]["flapping links that were not judged"] = 1
    assert told(clusters)[0] == "yes"
    assert "flapping links that were not judged 1" in page(Figures("", "", robustness=clusters))


def test_the_goal_of_real_clusters_says_what_it_asks_for() -> None:
    said = (
        "1,000,000 requests, none undecided; on 4 clusters, behind proxies and in network namespaces, each with each "
        "kind of fault that it can have, and with something to look at for each check"
    )
    assert f"; 4 clusters | {said} | yes |" in told(CLUSTERS)[1]


@pytest.mark.parametrize("kind", [each.__name__ for each in ROUND])
def test_a_scenario_that_was_not_played_misses_the_goal_of_containers(kind: str) -> None:
    good = page(Figures("", "", chaos=CHAOS))
    assert verdicts(good, "faults in containers") == ["yes"] and "| 14; 0 | each of 14 kinds once; 0 |" in good
    faults = {name: each for name, each in FAULTS.items() if name != kind}
    text = page(Figures("", "", chaos={**CHAOS, "faults": faults}))
    assert verdicts(text, "faults in containers") == ["**no**"]
    assert f"| 13; 0; **not shown**: {kind.replace('_', ' ')} |" in text
