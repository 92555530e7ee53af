"""How the dashboard looks with something in every view: it can be read, fits its width, and pictures of it are kept."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.client.nodes import Nodes
from tests.ui import scene
from tests.ui.asked import ASKED, FOLLOWED
from tests.ui.asking import quoted
from tests.ui.browser import Page
from tests.ui.contrast import too_faint

LOOKED_AT = {
    "overview": ("overview", ".charts svg path.line"),
    "locks": ("locks", "main tbody tr"),
    "lock": (f"locks?key={quoted('ledger/close-day')}", "#queue li"),
    "leases": ("leases", "#leases tbody tr"),
    "sessions": ("sessions", "#sessions tbody tr"),
    "resources": ("graph", "#resources tbody tr"),
    "resource": (f"graph?id={quoted('layout/2')}", "svg[role=group] g.cycle"),
    "resource-reclaiming": (f"graph?id={quoted('blob/old')}", "svg[role=group] g.reclaiming"),
    "cleanups": ("reclaims", "#reclaims tbody tr"),
    "queues": ("queues", "#queues tbody tr"),
    "queue": ("queues?queue=thumbnails", "#shards li.suspect:is(li.owned ~ *)"),
    "tombstones": ("tombstones", "#tombstones tbody tr"),
    "events": ("events", "#events tr"),
}
"""By picture: the view, and what is there as soon as it has been drawn."""
SIZES = {"wide": (1280, 860), "phone": (360, 780)}
ASKS = "document.body.innerText.includes('Asking')"
TOO_WIDE = """
((hidden) =>
[...document.querySelectorAll('main *')].filter((each) => {
  const box = each.getBoundingClientRect();
  return box.width && !each.closest('svg') && !hidden(each) && (box.right > innerWidth + 1 || box.left < -1);
}).map((each) => each.outerHTML.slice(0, 200)))((each) => each.closest('thead')?.clientWidth === 1)
"""
COVERED = """
[...document.querySelectorAll('main td, main th, main dd, main li, main button, nav a')].filter((each) =>
  each.scrollWidth > each.clientWidth + 1 && each.clientWidth && getComputedStyle(each).display !== 'inline'
).map((each) => each.outerHTML.slice(0, 200))
"""
"""What is wider than its own place, and so lies on its neighbour."""
CHOSEN_IS_SEEN = """
(({ left, right }) => left >= 0 && right <= innerWidth)(
  document.querySelector('nav [aria-current]').getBoundingClientRect()
)
"""


@pytest.fixture(scope="module")
def node(cluster: Nodes, page: Page) -> Iterator[str]:
    """The address of a follower that has all of the scene: the page is open on it."""
    leader = asyncio.run(cluster.leader())
    chosen = next(address for name, address in zip(cluster.names, cluster.endpoints, strict=True) if name != leader)
    waiting = scene.set_up(chosen)
    page.complaints.clear()
    page.command("Network.enable")
    page.go(f"{chosen}/ui/")
    page.wait_for_text("#connection", "live")
    page.wait_for("document.querySelectorAll('.charts svg path.line').length >= 6", "lines in the charts")
    yield chosen
    page.command("Network.disable")
    scene.let_go(chosen, waiting)
    page.look(*SIZES["wide"])


@pytest.mark.parametrize("size", SIZES)
def test_every_view_can_be_read_and_fits(node: str, page: Page, pictures: Path, size: str) -> None:
    page.look(*SIZES[size])
    for name, (view, drawn) in LOOKED_AT.items():
        page.view(f"#/{view}")
        _happen(name, node, page)
        page.wait_for(f"document.querySelectorAll({drawn!r}).length && !{ASKS}", f"{drawn} in {view}")
        if name == "resource":
            page.click("[data-key=ask]")
            page.wait_for_text("#loss", "would be reclaimed")
        for dark in (False, True):
            page.look(*SIZES[size], dark=dark)
            page.photograph(pictures / f"{name}-{size}-{'dark' if dark else 'light'}.png")
            assert too_faint(page) == [], view
        assert page.value(TOO_WIDE) == [], f"{view} is wider than the page"
        assert page.value(COVERED) == [], f"{view} has something that is wider than its place"
        assert page.value(CHOSEN_IS_SEEN), f"{view} is not seen to be chosen"
    assert page.complaints == []


def _happen(name: str, node: str, page: Page) -> None:
    """What has to happen while somebody looks."""
    if name == "queue":
        scene.beat(node, "thumb-1", "thumb-3")
    if name == "events":
        page.wait_for_text("#main", "live")
        scene.events(node)


def test_nothing_is_asked_but_what_is_known_to_cost_little(node: str, page: Page) -> None:
    """After all views were opened above, and one lease and one session by its id."""
    for kind, rows in (("leases", "#leases"), ("sessions", "#sessions")):
        page.view(f"#/{kind}")
        page.click(f"{rows} tbody a")
        page.wait_for_text("main h1", "0000")
    known = {re.compile(re.sub("{[a-z]+}", "[^/]+", path)): path for path in (*ASKED, *FOLLOWED)}
    asked = {urlsplit(each).path for each in page.addresses if "/ui/" not in each}
    matched = {path: [known[each] for each in known if each.fullmatch(path)] for path in asked}
    assert [path for path, found in matched.items() if not found] == []
    assert {each for found in matched.values() for each in found} == set(known.values())


def test_a_question_before_something_is_done(node: str, page: Page, pictures: Path) -> None:
    for size, dark in (("wide", False), ("phone", True)):
        page.look(*SIZES[size], dark=dark)
        page.view(f"#/locks?key={quoted('ledger/close-day')}")
        page.click("[data-key=break]")
        page.wait_for_text("dialog", "Break this lock?")
        assert too_faint(page) == []
        page.photograph(pictures / f"question-{size}-{'dark' if dark else 'light'}.png", whole=False)
        page.press("Escape")
        page.wait_for("!document.querySelector('dialog')", "the dialog to close")
