"""What real clusters and containers were not shown, though their goals ask for it: a run may be over before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.chaos.scenarios import ROUND
from tests.robustness.__main__ import CLUSTERS
from tests.robustness.faults import FLAPPING, NOT_JUDGED, NOTICED, kinds_of

SCENARIOS = tuple(dict.fromkeys(scenario.__name__ for scenario in ROUND))
"""Of a full round of the chaos run."""
ENDED = ("locks", "leases", "sessions")
LOOKED_AT = {
    "kept": "locks and leases of the whole run",
    "digest_revision": "digests that were compared",
    "lease_claims": "leader's leases that were told of",
}
"""Without any, the check of it looked at nothing."""


def of_clusters(runs: Sequence[dict[str, Any]]) -> list[str]:
    """By cluster."""
    by_name, found = {run["name"]: run for run in runs}, list[str]()
    for name, (size, processes) in CLUSTERS.items():
        if name not in by_name:
            found.append(name)
            continue
        lacking = ", ".join(_of_cluster(by_name[name], kinds_of(size, processes.KINDS)))
        found += [f"{name}: {lacking}"] if lacking else []
    return found


def _of_cluster(run: dict[str, Any], kinds: Sequence[str]) -> Iterator[str]:
    """`kinds`: of the faults that are done to it."""
    faults, noticed, ended = run["faults"], run.get("noticed", {}), run.get("short_ended")
    for kind in kinds:
        times = faults.get(kind, 0)
        if not times:
            yield kind
        elif kind in NOTICED and not noticed.get(NOTICED[kind]):
            yield f"{kind} that was noticed"
        elif kind == FLAPPING and times <= noticed.get(NOT_JUDGED, 0):
            yield f"{kind} that was judged"
    yield from (what for figure, what in LOOKED_AT.items() if not run.get(figure))
    # Earlier figures have one number, of keys that were looked at: it says nothing of what was granted.
    gone = ended if isinstance(ended, dict) else {}
    yield from (f"short {kind} that ended" for kind in ENDED if not gone.get(kind))


def of_containers(found: dict[str, Any]) -> list[str]:
    times = {name: each["times"] for name, each in found["faults"].items()}
    return [name.replace("_", " ") for name in SCENARIOS if not times.get(name)]
