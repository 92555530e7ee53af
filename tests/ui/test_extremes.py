"""The dashboard at its edges: nothing there yet, names as long as may be, a member that is gone, a quorum that is."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.nodes import Nodes, nodes
from tests.ui.asking import ask, graph, lock, queue_for, quoted
from tests.ui.browser import Page
from tests.ui.contrast import too_faint
from tests.ui.test_appearance import ASKS, COVERED, SIZES, TOO_WIDE

VIEWS = ("overview", "locks", "leases", "sessions", "graph", "reclaims", "queues", "tombstones", "events")
LONG = "a-name-that-somebody-made-of-everything-they-knew/" + "0123456789abcdef" * 12
LONG_MS = 1_800_000
OUTSIDE = """
[...document.querySelectorAll('svg[role=group] g.node')].filter((node) => {
  const end = (each) => each.getBoundingClientRect().right;
  return [...node.querySelectorAll('text:not(.more-marker)')].some((t) => end(t) > end(node.querySelector('rect')));
}).map((node) => node.querySelector('title').textContent)
"""
"""What is written beyond the box it is in."""
BROKEN = """
[...document.querySelectorAll('#cluster td.actions button, #cluster td .line')].filter((each) =>
  each.getClientRects().length > 1 || each.getBoundingClientRect().height > 34).map((each) => each.outerHTML)
"""
"""What is one thing and stands on two lines."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Its own: nothing has happened in it."""
    with nodes(tmp_path_factory.mktemp("extremes")) as running:
        yield running


@pytest.fixture(scope="module")
def node(cluster: Nodes, page: Page) -> Iterator[str]:
    """The address of a follower: the page is open on it."""
    leader = asyncio.run(cluster.leader())
    chosen = next(address for name, address in zip(cluster.names, cluster.endpoints, strict=True) if name != leader)
    page.look(*SIZES["wide"])
    page.go(f"{chosen}/ui/")
    page.wait_for_text("#connection", "live")
    yield chosen
    page.look(*SIZES["wide"])


def seen(page: Page, pictures: Path, name: str) -> None:
    """Wide and on a phone, light and dark: it fits and can be read."""
    for size, dark in (("wide", False), ("phone", True)):
        page.look(*SIZES[size], dark=dark)
        page.photograph(pictures / f"{name}-{size}-{'dark' if dark else 'light'}.png")
        assert page.value(TOO_WIDE) == [], f"{name} is wider than the page"
        assert page.value(COVERED) == [], f"{name} has something that is wider than its place"
        assert page.value(OUTSIDE) == [] and page.value(BROKEN) == [], name
        assert too_faint(page) == [], name


@pytest.mark.parametrize("view", VIEWS)
def test_where_nothing_is_a_word_says_so(node: str, page: Page, pictures: Path, view: str) -> None:
    page.view(f"#/{view}")
    page.wait_for(f"document.querySelector('main .panel') && !{ASKS}", view)
    if view != "overview":
        page.wait_for("!!document.querySelector('main .empty')?.innerText", f"a word in {view}")
    seen(page, pictures, f"empty-{view}")


def test_names_as_long_as_may_be_fit(node: str, page: Page, pictures: Path) -> None:
    session = ask(node, "POST", "/sessions", {"client_id": LONG, "ttl_ms": LONG_MS})["session_id"]
    lock(node, LONG, LONG, lease_time_ms=LONG_MS, session_id=session)
    waiting = queue_for(node, LONG, f"{LONG}-2")
    graph(node, (LONG, f"{LONG}/child"), (f"{LONG}/child", LONG))
    ask(node, "POST", "/leases/acquire", {"resource_id": LONG, "client_id": LONG, "lease_duration_ms": LONG_MS})
    ask(node, "PUT", f"/queues/{quoted(LONG)}", {})
    ask(node, "POST", f"/queues/{quoted(LONG)}/tasks", {"payload": None})
    for name, view, drawn in (
        ("locks", "locks", "main tbody tr"), ("lock", f"locks?key={quoted(LONG)}", "#queue li"),
        ("leases", "leases", "#leases tbody tr"), ("sessions", "sessions", "#sessions tbody tr"),
        ("resources", "graph", "#resources tbody tr"), ("resource", f"graph?id={quoted(LONG)}", "svg[role=group]"),
        ("queues", "queues", "#queues tbody tr"), ("queue", f"queues?queue={quoted(LONG)}", "#queue-itself h1"),
    ):  # fmt: skip
        page.view(f"#/{view}")
        page.wait_for(f"document.querySelectorAll({drawn!r}).length && !{ASKS}", f"{drawn} in {view}")
        seen(page, pictures, f"long-{name}")
    for _ in range(2):
        ask(node, "POST", "/locks/break", {"lock_key": LONG})
    waiting.join(timeout=60)


def test_a_member_that_is_gone_and_then_the_quorum(cluster: Nodes, node: str, page: Page, pictures: Path) -> None:
    """The leader is the last to go: whoever is left has nobody to tell it that it does not lead any more."""
    own, other = cluster.names[cluster.endpoints.index(node)], asyncio.run(cluster.leader())
    (one,) = (name for name in cluster.names if name not in (own, other))
    page.look(*SIZES["wide"])
    page.view("#/overview")
    cluster.send(one, signal.SIGKILL)
    page.wait_for_text("#cluster", "no answer")
    page.wait_for_text("#verdict", "leads in term")
    seen(page, pictures, "member-gone")
    cluster.send(other, signal.SIGKILL)
    page.wait_for_text("#connection", "no leader", 60)
    page.wait_for_text("#trouble", "No leader is known")
    assert not cluster.ready(own), "a balancer would send it requests"
    page.wait_for("!document.querySelector('[data-key^=transfer]')", "no leadership to hand over")
    page.wait_for("document.querySelector('#cluster').innerText.split('no answer').length === 3", "two that are gone")
    seen(page, pictures, "quorum-gone")
    page.view("#/locks")
    page.wait_for("!!document.querySelector('main .refused:not([hidden])')", "why there is no list", 60)
    seen(page, pictures, "quorum-gone-locks")
    cluster.send(own, signal.SIGKILL)
    page.wait_for_text("#connection", "no answer", 60)
    page.view("#/overview")
    seen(page, pictures, "node-gone")
