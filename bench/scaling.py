"""Renders docs/SCALING.md from bench/results: `python -m bench.scaling`. No figure in it comes from anywhere else.

The prose and the formulas are in bench/scaling.md; `{{name}}` there is a value that is worked out here. What has not
been measured yet is shown as "not measured".
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.load import RESULTS
from bench.rounds import OURS, row_of
from cluster.options import Limits
from coordinator.machine.limits import DEFAULT_LEASES, MAX_LEASES

TEMPLATE = Path(__file__).parent / "scaling.md"
RENDERED = Path(__file__).parents[1] / "docs" / "SCALING.md"
NOT_MEASURED = "not measured"
HEARTBEAT_S = 10
"""The source document's interval."""
LINK_BYTES = 10e9 / 8
"""A second, of a 10 Gbit/s link."""
HEADROOM = 0.5
"""Of what saturates it, a leader is planned to carry this part: the rest is for snapshots and for catching up."""
NAME_BYTES = 16
LARGE = (50_000_000, 500_000_000)

Values = dict[str, str]


class Unmeasured(Exception):
    """A value needs a result that is not there."""


class Results:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def part(self, name: str) -> dict[str, Any]:
        path = self._directory / f"{name}.json"
        if not path.exists():
            raise Unmeasured(name)
        found: dict[str, Any] = json.loads(path.read_text())
        if found.get("quick"):
            raise Unmeasured(name)
        return found

    def row(self, part: str, starts: str, at_leases: int | None = None, system: str = OURS) -> dict[str, Any]:
        """The first row of the part whose work begins so, with the most leases unless told."""
        rows = [row for row in self.part(part)["rows"] if row["what"].startswith(starts) and row["system"] == system]
        rows = [row for row in rows if at_leases is None or row.get("leases") == at_leases]
        if not rows:
            raise Unmeasured(starts)
        return max(rows, key=lambda row: int(row.get("leases", 0)))

    def median(self, row: dict[str, Any], key: str) -> float:
        if key not in row["figures"]:
            raise Unmeasured(key)
        return float(row["figures"][key]["median"])


class Model:
    """The formulas of docs/SCALING.md, each on measured figures."""

    def __init__(self, results: Results) -> None:
        self._results = results

    # --- measured -------------------------------------------------------------------------------------------------

    @property
    def _renewal(self) -> dict[str, Any]:
        return self._results.row("millions", "renewals x1,000,")

    def leases(self) -> float:
        return float(self._renewal["leases"])

    def renewals(self) -> float:
        return self._results.median(self._renewal, "per_second")

    def leader_us(self) -> float:
        return self._results.median(self._renewal, "leader_cpu_us_each")

    def all_us(self) -> float:
        return self._results.median(self._renewal, "cpu_us_each")

    def follower_us(self) -> float:
        return (self.all_us() - self.leader_us()) / 2

    def ingress_bytes(self) -> float:
        return float(self._renewal["bytes_sent_each"])

    def replicated_bytes(self) -> float:
        """To both followers: all that passed, without what clients sent and were answered."""
        passed = self._results.median(self._renewal, "loopback_bytes_each")
        replicated = passed - self.ingress_bytes() - float(self._renewal["bytes_answered_each"])
        if replicated <= 0:
            raise Unmeasured("bytes between the nodes")
        return replicated

    def session_heartbeats(self) -> float:
        return self._results.median(self._results.row("millions", "sessions of"), "heartbeats_per_second")

    def lease_bytes(self) -> float:
        return float(max(self._results.part("millions")["figures"]["bytes_a_lease"]))

    def snapshot_s(self) -> float:
        return float(self._results.part("millions")["figures"]["snapshots"]["follower"]["seconds"])

    def restart_s(self) -> float:
        return float(self._results.part("millions")["figures"]["restart"]["ready_s"])

    def sync_ms(self) -> float:
        return float(self._results.part("millions")["machine"]["sync_8k_ms"]["p50"])

    def lock_pairs(self) -> float:
        return self._results.median(self._results.row("locks", "lock pairs, 64 at once"), "per_second")

    def lock_leader_us(self) -> float:
        return self._results.median(self._results.row("locks", "lock pairs, 64 at once"), "leader_cpu_us_each")

    def look_up_us(self) -> float:
        found = row_of(self._results.part("lookups")["rows"], "look-up of one lease, leader, linearizable")
        if found is None:
            raise Unmeasured("lookups")
        return self._results.median(found, "leader_cpu_us_each")

    def failover_ms(self) -> float:
        return self._results.median(self._results.row("failover", "failover"), "p50_ms")

    # --- where the leader saturates -------------------------------------------------------------------------------

    def by_cpu(self) -> float:
        """Renewals a second that fill the one core a node's loop runs on."""
        return 1e6 / self.leader_us()

    def by_sync(self) -> float:
        """With entries as full as they get."""
        return Limits().entry_bytes / 8 / (self.sync_ms() / 1e3)

    def by_link(self, nodes: int) -> float:
        """What leaves the leader: a copy for each follower."""
        return LINK_BYTES / (self.replicated_bytes() / 2 * (nodes - 1))

    def first(self, nodes: int) -> str:
        limits = {"CPU": self.by_cpu(), "fsync": self.by_sync(), "network": self.by_link(nodes)}
        return min(limits, key=lambda name: limits[name])

    def carried(self, nodes: int) -> float:
        """Renewals a second that a cluster is planned for."""
        return HEADROOM * min(self.by_cpu(), self.by_sync(), self.by_link(nodes))

    def carried_leases(self, nodes: int) -> float:
        return min(MAX_LEASES, self.carried(nodes) * HEARTBEAT_S)

    # --- more leases than one cluster has ---------------------------------------------------------------------------

    def clusters(self, leases: int) -> int:
        by_rate = leases / HEARTBEAT_S / self.carried(3)
        return max(math.ceil(by_rate), self.clusters_by_size(leases))

    def clusters_by_size(self, leases: int) -> int:
        return math.ceil(leases / MAX_LEASES)

    def node_gib(self, leases: int, clusters: int) -> float:
        return leases / clusters * (self.lease_bytes() + NAME_BYTES) / (1 << 30)

    def snapshot_at(self, leases: int, clusters: int) -> float:
        return self.snapshot_s() * leases / clusters / self.leases()


def values(model: Model, results: Results) -> Values:
    found: Values = {}

    def put(name: str, value: Callable[[], float | str], form: str = ",.0f") -> None:
        try:
            got = value()
        except Unmeasured:
            found[name] = NOT_MEASURED
        else:
            found[name] = got if isinstance(got, str) else f"{got:{form}}"

    put("machine", lambda: _machine(results.part("millions")["machine"]), "")
    for name in ("leases", "renewals", "session_heartbeats", "lock_pairs", "by_cpu", "by_sync", "failover_ms"):
        put(name, getattr(model, name))
    for name in ("leader_us", "follower_us", "all_us", "ingress_bytes", "replicated_bytes", "sync_ms", "snapshot_s",
                 "restart_s", "lock_leader_us", "look_up_us", "lease_bytes"):  # fmt: skip
        put(name, getattr(model, name), ",.2f")
    for nodes in (3, 5):
        put(f"by_link_{nodes}", lambda nodes=nodes: model.by_link(nodes))  # type: ignore[misc]
        put(f"first_{nodes}", lambda nodes=nodes: model.first(nodes))  # type: ignore[misc]
        put(f"carried_{nodes}", lambda nodes=nodes: model.carried(nodes))  # type: ignore[misc]
        put(f"carried_leases_{nodes}", lambda nodes=nodes: model.carried_leases(nodes))  # type: ignore[misc]
    for leases in LARGE:
        key = f"{leases // 1_000_000}m"
        put(f"by_size_{key}", lambda leases=leases: model.clusters_by_size(leases))  # type: ignore[misc]
        put(f"clusters_{key}", lambda leases=leases: model.clusters(leases))  # type: ignore[misc]
        put(f"gib_{key}", lambda leases=leases: model.node_gib(leases, model.clusters(leases)), ",.1f")  # type: ignore[misc]
        put(f"snapshot_{key}", lambda leases=leases: model.snapshot_at(leases, model.clusters(leases)), ",.1f")  # type: ignore[misc]
        put(f"ingress_{key}", lambda leases=leases: leases / HEARTBEAT_S * model.ingress_bytes() / 1e6)  # type: ignore[misc]
    found |= {
        "max_leases": f"{MAX_LEASES:,}",
        "default_leases": f"{DEFAULT_LEASES:,}",
        "heartbeat_s": str(HEARTBEAT_S),
        "headroom": f"{HEADROOM:.0%}",
        "entry_kib": str(Limits().entry_bytes >> 10),
        "name_bytes": str(NAME_BYTES),
    }
    return found


def _machine(seen: dict[str, Any]) -> str:
    return f"{seen['cores']} cores ({seen['cpu']}), {seen['utc']} UTC, load {seen['load_before'][0]} before"


def render(results: Path) -> str:
    found = values(Model(Results(results)), Results(results))

    def put(place: re.Match[str]) -> str:
        return found[place[1]]

    return re.sub(r"{{(\w+)}}", put, TEMPLATE.read_text())


def main() -> None:
    shown = render(RESULTS)
    RENDERED.write_text(shown)
    print(f"{RENDERED}: {shown.count(NOT_MEASURED)} values are not measured", file=sys.stderr)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__).parse_args()
    main()
