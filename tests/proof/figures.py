"""What each part of a proof wrote, whether it can be relied on, and what of it is a violation or a failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NAMES = (
    "simulation", "seeds", "replay", "planted", "directed", "failpoints", "flips", "fuzz", "ports", "scale", "failover",
    "robustness", "chaos",
)  # fmt: skip


@dataclass
class Figures:
    """None where a part did not run, or failed before it could write any."""

    date: str
    commit: str
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each part that ran: when, at which commit, how long, whether it passed, and with the sources of today."""
    simulation: dict[str, Any] | None = None
    seeds: dict[str, Any] | None = None
    replay: dict[str, Any] | None = None
    planted: list[list[Any]] | None = None
    directed: list[dict[str, Any]] | None = None
    failpoints: dict[str, Any] | None = None
    flips: dict[str, Any] | None = None
    fuzz: list[dict[str, Any]] | None = None
    ports: dict[str, Any] | None = None
    scale: dict[str, dict[str, Any]] | None = None
    failover: dict[str, Any] | None = None
    robustness: list[dict[str, Any]] | None = None
    chaos: dict[str, Any] | None = None

    def failed(self, part: str) -> bool:
        """As far as its run says. One whose run is not known is judged by its figures alone."""
        return part in self.runs and not self.runs[part]["passed"]

    def is_older(self, part: str) -> bool:
        return part in self.runs and not self.runs[part]["same"]

    def absent(self, part: str) -> str:
        """What the page says of a part that has no figures."""
        return "**Failed, and left no figures.**\n" if self.failed(part) else "Not run.\n"

    @property
    def missing(self) -> list[str]:
        """Parts of which nothing is known."""
        return [name for name in NAMES if getattr(self, name) is None and name not in self.runs]

    @property
    def violations(self) -> dict[str, int]:
        """By part, those that have any: broken invariants, and whatever else a part says went wrong."""
        found = {
            "simulation": len(self.simulation["failed"]) if self.simulation else 0,
            "seeds": len(self.seeds["failed"]) if self.seeds else 0,
            "replay": len(self.replay["different"]) if self.replay else 0,
            "planted": sum(not is_found(row) for row in self.planted or ()),
            "directed": sum(not is_shown(row) for row in self.directed or ()),
            "failpoints": len(self.failpoints["left"]) if self.failpoints else 0,
            "flips": len(self.flips["failed"]) if self.flips else 0,
            "fuzz": sum("broken" in row for row in self.fuzz or ()),
            "ports": _at_ports(self.ports) if self.ports else 0,
            "scale": sum(not told["reached"] for told in (self.scale or {}).values()),
            "failover": len(self.failover["hand_overs"]["failed"]) if self.failover else 0,
            "robustness": sum(bool(run.get("violation")) for run in self.robustness or ()),
            "chaos": len(self.chaos["violations"]) if self.chaos else 0,
        }
        return {part: number for part, number in found.items() if number}


def is_found(row: list[Any]) -> bool:
    """Of a planted bug."""
    return not str(row[2]).startswith("NOT")


def is_shown(row: dict[str, Any]) -> bool:
    """Of a directed test: without its guards the harm is seen, and with them the tests beside it see none."""
    return bool(row["seen"] and row["harmless"])


def _at_ports(found: dict[str, Any]) -> int:
    """Some of what it finds wrong has no number: then it is one."""
    changed = sum(not same for same in found["unchanged"].values())
    return found["wrong_5xx"] + len(found["untyped"]) + found["tracebacks"] + changed or int(not found["reached"])
