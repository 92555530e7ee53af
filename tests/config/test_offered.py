"""What configs/ offers to Prometheus, Grafana and systemd fits the product; links lead somewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.http.telemetry import _Numbers
from coordinator.machine.commands import CreateSession
from tests.cli.processes import REPOSITORY
from tests.service.lone import LoneHost, service_of

ALERTS = REPOSITORY / "configs" / "prometheus" / "alerts.yml"
DASHBOARD = REPOSITORY / "configs" / "grafana" / "holdfast.json"
RUNBOOKS = REPOSITORY / "docs" / "RUNBOOKS.md"

LABELS_OF_PROMETHEUS = {"job", "instance", "le"}
_METRIC = re.compile(r"\b(holdfast_\w+)(?:\{([^}]*)\})?")


def exported() -> dict[str, set[str]]:
    """Every name that can be asked for, with its labels. Of a node with [tls], which exports more."""
    host = LoneHost()
    host.replica.telemetry.certificate_expires_s = {"cert": 2e9, "ca": 2e9}
    host.run(CreateSession("c", 1_000))
    known: dict[str, set[str]] = {}
    for family in _Numbers(service_of(host)).collect():
        labels = set(getattr(family, "_labelnames", ()))
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        known |= {family.name + end: labels for end in ends}
    return known


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    dashboard = json.loads(DASHBOARD.read_text())
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ()))
    yield from (each["expr"] for each in dashboard["annotations"]["list"])
    yield from (each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query")


def test_every_metric_that_is_asked_for_is_exported() -> None:
    known, asked = exported(), list(queries())
    assert len(asked) > 40
    for query in asked:
        found = _METRIC.findall(query)
        assert found or "up{" in query, query
        labels = set(re.findall(r"\bby \(([^)]*)\)", query))
        by = {label.strip() for group in labels for label in group.split(",")}
        for name, selector in found:
            assert name in known, f"{query} asks for {name}, which no node exports"
            used = set(re.findall(r"(\w+)\s*[=!]~?", selector)) | by
            assert used <= known[name] | LABELS_OF_PROMETHEUS, f"{query}: {name} has only {sorted(known[name])}"


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook_url"].rpartition("/")[2].partition("#")
    assert page == "RUNBOOKS.html"
    text = RUNBOOKS.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
    assert rule["alert"] in text


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_one_cluster_does_not_hide_another(rule: dict[str, Any]) -> None:
    """Two clusters are two jobs: a sum or a maximum over both would have the leader of one stand for the other."""
    expr = rule["expr"]
    assert not re.search(r"\b(sum|max|min|avg|count) *\(", expr), "an aggregation without `by (job…)`"
    assert all(by.split(",")[0] == "job" for by in re.findall(r"\bby \(([^)]*)\)", expr)), expr
    assert 'job="' not in expr, "one job only"


def test_the_unit_runs_commands_that_there_are() -> None:
    from coordinator.cli.program import parser

    unit = (REPOSITORY / "configs" / "systemd" / "holdfast.service").read_text()
    started = re.findall(r"^ExecStart(?:Pre)?=\S+/holdfast (.*)$", unit, re.MULTILINE)
    assert len(started) == 2
    for words in started:
        assert parser().parse_args(words.split()).command


def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    """Asked of systemd itself where it is; it takes unknown keys with a word and no exit code."""
    unit = (REPOSITORY / "configs" / "systemd" / "holdfast.service").read_text()
    assert re.findall(r"^\[(\w+)\]$", unit, re.MULTILINE) == ["Unit", "Service", "Install"]
    assert [line for line in unit.splitlines() if line and not re.match(r"#|\[|[A-Z]\w+=", line)] == []
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        (copy := tmp_path / "holdfast.service").write_text(unit.replace("/opt/holdfast/bin/holdfast", "/bin/true"))
        ran = subprocess.run([verify, "verify", str(copy)], capture_output=True, text=True, check=False)
        assert (ran.returncode, [line for line in ran.stderr.splitlines() if copy.name in line]) == (0, []), ran.stderr


def test_an_alert_tells_one_quantity_whichever_of_its_conditions_holds() -> None:
    """`{{ $value }}` is the left side of the one that holds: of the same metric, and not a ratio in one of them."""
    for rule in rules():
        sides = [re.split(r" [<>]=? ", each)[0] for each in rule["expr"].split(" or ")]
        if "$value" in rule["annotations"]["summary"]:
            assert len(set(sides)) == 1, rule["alert"]
