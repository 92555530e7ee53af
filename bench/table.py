"""Results as tables of plain text that are Markdown too: a part's own, and the one of a whole run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.load import bound_of

SUMMARY = "SUMMARY.md"
COLUMNS = ("work", "system", "a second (least – most)", "p50 ms", "p99 ms (least – most)", "CPU µs each", "cores",
           "MiB", "bytes sent each", "FIFO share", "generator late p99 ms")  # fmt: skip


def table_of(document: dict[str, Any]) -> str:
    parts = [f"## {document['part']}", "", _about(document)]
    if document["rows"]:
        parts += ["", _rows(document["rows"])]
    if document.get("ratios"):
        parts += ["", "Ours / theirs, median of the rounds' ratios (least – most):", "", _ratios(document["ratios"])]
    if document.get("figures"):
        parts += ["", *(f"- {name.replace('_', ' ')}: {_shown(value)}" for name, value in document["figures"].items())]
    if document["goals"]:
        parts += ["", _goals(document["goals"])]
    if document.get("notes"):
        parts += ["", *(f"- {note}" for note in document["notes"])]
    return "\n".join([*parts, ""])


def _about(document: dict[str, Any]) -> str:
    seen = document["machine"]
    told = f"{seen['cores']} cores ({seen['cpu']}), load {seen['load_before'][0]} before, {document['rounds']} rounds, "
    told += f"{seen['utc']} UTC, {seen.get('seconds', '?')} s."
    versions = ", ".join(f"{name} {version}" for name, version in document.get("versions", {}).items())
    told += f" With {versions}." if versions else ""
    missing = ", ".join(document.get("not_measured", {}))
    told += f" NOT installed and so not measured: {missing}." if missing else ""
    return told + (" QUICK: a trial, no figures to quote." if document.get("quick") else "")


def _rows(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        figures = row["figures"]
        p50 = figures.get("acquire_p50_ms") or figures.get("p50_ms")
        p99 = figures.get("acquire_p99_ms") or figures.get("p99_ms")
        cpu, cores, fifo, late = (
            figures.get(key) for key in ("cpu_us_each", "cores_busy", "fifo_share", "late_p99_ms")
        )
        lines.append((
            row["what"], row["system"], _spread(figures.get("per_second"), ",.0f"),
            "" if p50 is None else f"{p50['median']:.2f}", _spread(p99, ".2f"),
            "" if cpu is None else f"{cpu['median']:,.2f}", "" if cores is None else f"{cores['median']:.2f}",
            f"{row['resident_mib']:,}", str(row.get("bytes_sent_each", "")),
            "" if fifo is None else f"{fifo['median']:.3f}", "" if late is None else f"{late['median']:.2f}",
        ))  # fmt: skip
    return _drawn(COLUMNS, lines)


def _ratios(found: list[dict[str, Any]]) -> str:
    """A line for each peer and work."""
    lines = []
    for what, peer in dict.fromkeys((each["what"], each["ours_by"]) for each in found):
        of_both = {each["figure"]: each for each in found if (each["what"], each["ours_by"]) == (what, peer)}
        p50, p99 = (of_both.get(f"acquire_{key}") or of_both.get(key) for key in ("p50_ms", "p99_ms"))
        lines.append((what, peer, *(_spread(each, ".2f") for each in (of_both.get("per_second"), p50, p99))))
    return _drawn(("work", "peer", "a second", "p50", "p99"), lines)


def _goals(goals: list[dict[str, Any]]) -> str:
    lines = [
        (each["goal"], f"{each['value']:,.3f}", bound_of(each), "met" if each["met"] else "NOT met") for each in goals
    ]
    return _drawn(("goal", "measured", "asked", ""), lines)


def _spread(value: dict[str, float] | None, form: str) -> str:
    if not value or "median" not in value:
        return ""
    return f"{value['median']:{form}} ({value['least']:{form}} – {value['most']:{form}})"


def _shown(value: Any) -> str:
    return (
        json.dumps(value) if isinstance(value, dict | list) else f"{value:,}" if isinstance(value, int) else str(value)
    )


def _drawn(columns: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    kept = [at for at in range(len(columns)) if any(line[at] for line in lines)]
    widths = {at: max(len(columns[at]), *(len(line[at]) for line in lines)) for at in kept}
    drawn = [[columns[at].ljust(widths[at]) for at in kept], ["-" * widths[at] for at in kept]]
    drawn += [[line[at].ljust(widths[at]) for at in kept] for line in lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in drawn)


def summary(results: Path) -> str:
    """All parts there are results of, in one document; the goals first, then the tables, then who has others."""
    documents = {path: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    goals = [goal for document in documents.values() for goal in document.get("goals", ())]
    met = sum(goal["met"] for goal in goals)
    parts = ["# Benchmarks", "", f"{met} of {len(goals)} goals met. What each part does: docs/BENCHMARKS.md.", ""]
    if goals:
        parts += [_goals(goals), ""]
    parts += [table_of(document) for document in documents.values() if "part" in document]
    others = [_other(path, document) for path, document in documents.items() if "part" not in document]
    if others:
        parts += ["## Results of another shape", "", *others, ""]
    return "\n".join(parts)


def _other(path: Path, document: dict[str, Any]) -> str:
    charts = ", ".join(f"[{chart.stem}]({chart.name})" for chart in sorted(path.parent.glob(f"{path.stem}_*.svg")))
    seen = document["machine"]
    told = f"- [{path.stem}]({path.name}): {seen['cores']} cores, "
    told += f"load {seen['load_before'][0]} before, {seen['utc']} UTC"
    return f"{told}; charts {charts}" if charts else told
