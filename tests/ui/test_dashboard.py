"""The dashboard as somebody sees it: Chromium on a page of a live cluster of three nodes."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from tests.client.nodes import Nodes
from tests.ui.asking import ask, graph, lock, queue_for, quoted
from tests.ui.browser import Page

HOSTILE = "<img src=x onerror=\"window.hit='in'\"> & </td><script>window.hit='in'</script>"
CYCLE = (("app/catalogue", "cache/1"), ("cache/1", "cache/2"), ("cache/2", "cache/3"), ("cache/3", "cache/1"))
BEFORE_EVERYTHING = "document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')"


@pytest.fixture(scope="module")
def node(cluster: Nodes, page: Page) -> str:
    """The address of a follower: the page is open on it."""
    leader = asyncio.run(cluster.leader())
    chosen = next(address for name, address in zip(cluster.names, cluster.endpoints, strict=True) if name != leader)
    page.go(f"{chosen}/ui/")
    page.value("void (window.since = 'the beginning')")
    page.wait_for_text("#connection", "live")
    return chosen


@pytest.fixture
def calm(page: Page) -> None:
    """Nothing was complained about before, and nothing is afterwards."""
    page.complaints.clear()


def test_the_cluster_is_told_of_by_each_member(node: str, page: Page, calm: None) -> None:
    rows = "[...document.querySelectorAll('#cluster tbody tr')].map((row) => row.innerText)"
    page.wait_for(f"{rows}.filter((row) => row.includes('advancing')).length === 3", "three members")
    seen = page.value(rows)
    assert sum("leader" in row and "held" in row for row in seen) == 1
    assert all("GiB free" in row or "TiB free" in row for row in seen)
    assert "leads in term" in page.text("#verdict")
    session = ask(node, "POST", "/sessions", {"client_id": "looked-for", "ttl_ms": 300_000})
    leased = {"client_id": "a", "lease_duration_ms": 300_000}
    leases = [ask(node, "POST", "/leases/acquire", {"resource_id": f"tmp/{n}", **leased})["lease_id"] for n in range(3)]
    ask(node, "POST", "/heartbeats", {"client_id": "a", "lease_ids": leases, "extend_duration_ms": 300_000})
    label = "document.querySelector('.chart[aria-label=\"{}\"] svg').getAttribute('aria-label')"
    page.wait_for(f"/highest [1-9]/.test({label.format('Renewals')})", "renewals in the chart")
    page.wait_for(f"/median: now [\\d.]+ m?s/.test({label.format('Commit latency')})", "a commit latency")
    page.wait_for(f"/active: now ([3-9]|\\d\\d)/.test({label.format('Leases by state')})", "leases by state")
    page.view("#/sessions?find=looked")
    page.wait_for_text("#sessions", session["session_id"])
    page.view("#/leases?find=tmp/")
    page.wait_for(f"{json.dumps(leases)}.every((id) => document.querySelector('#leases').innerText.includes(id))", "it")
    assert page.complaints == []


def test_a_lock_changes_hands_while_somebody_looks(node: str, page: Page, calm: None) -> None:
    held = lock(node, "jobs/nightly", "worker-a")
    waiting = [queue_for(node, "jobs/nightly", "worker-b")]
    page.view("#/locks")
    page.click('a[href="#/locks?key=jobs%2Fnightly"]')
    page.wait_for_text("#holder", "worker-a")
    page.wait_for_text("#queue", "worker-b")
    waiting.append(queue_for(node, "jobs/nightly", "worker-c"))
    page.wait_for_text("#queue", "worker-c")
    order = page.text("#queue")
    assert order.index("worker-b") < order.index("worker-c")
    freed = {"lock_key": "jobs/nightly", "client_id": "worker-a", "fencing_token": held["fencing_token"]}
    ask(node, "POST", "/locks/release", freed)
    page.wait_for_text("#holder", "worker-b")
    page.wait_for_text("#lock-history", "granted to worker-b")
    assert "worker-b" not in page.text("#queue")
    _break_it_by_keyboard(page)
    for each in waiting:
        each.join(timeout=90)
    assert page.complaints == []


def _break_it_by_keyboard(page: Page) -> None:
    """The dialog keeps the focus, gives it back when it is left, and does what it says when it is not."""
    inside = "document.querySelector('dialog')?.contains(document.activeElement)"
    page.value("document.querySelector('[data-key=break]').focus()")
    page.press("Enter")
    page.wait_for(inside, "the focus in the dialog")
    assert "Leave it" in page.value("document.activeElement.innerText"), "the way out comes first"
    for shift in (False, False, False, False, True, True, True):
        page.press("Tab", shift=shift)
        assert page.value(f"{inside} || document.activeElement === document.body"), "the focus left the dialog"
    page.press("Escape")
    page.wait_for("!document.querySelector('dialog')", "the dialog to close")
    assert page.value("document.activeElement.dataset.key") == "break"
    assert "worker-b" in page.text("#holder"), "it was only looked at"
    page.press("Enter")
    page.click("dialog button.primary")
    page.wait_for_text("#holder", "worker-c")
    page.wait_for_text("#notices", "broken")


def test_a_list_says_what_keeps_a_resource_that_nothing_refers_to(node: str, page: Page, calm: None) -> None:
    ask(node, "PUT", "/resources/root", {"provider": "files", "kind": "segment", "pinned": True})
    page.view("#/graph?prefix=root")
    page.wait_for_text("#resources", "live pinned")


def test_a_leaked_cycle_is_found_with_what_keeps_it(node: str, page: Page, calm: None) -> None:
    graph(node, *CYCLE, ("cache/2", "blob/7"))
    leak = {"resource_id": "app/catalogue", "client_id": "renderer-3", "lease_duration_ms": 300_000}
    lease = ask(node, "POST", "/leases/acquire", leak)
    page.view("#/graph")
    page.click('input[name="prefix"]')
    page.type("cache/")
    page.press("Enter")
    page.click('#resources a[href="#/graph?id=cache%2F2"]')
    page.wait_for_text("#verdict-of-it", "renderer-3 has a lease on")
    path = page.value("[...document.querySelectorAll('#explain-path li')].map((each) => each.innerText)")
    assert path == ["app/catalogue", "cache/1", "cache/2"]
    ring = page.value("[...document.querySelectorAll('.cycle-found li')].map((each) => each.innerText)")
    assert ring == ["cache/2", "cache/3", "cache/1", "cache/2"]
    drawn = (
        "[...document.querySelectorAll('svg[role=group] g.node.{}')].map((g) => g.querySelector('title').textContent)"
    )
    assert {each.splitlines()[0] for each in page.value(drawn.format("cycle"))} == {"cache/1", "cache/2", "cache/3"}
    assert all("cycle" in each for each in page.value(drawn.format("cycle"))), "not by colour alone"
    assert page.value("document.querySelectorAll('svg[role=group] path.edge.path').length") >= 2
    _ask_what_if(page, lease["lease_id"])
    lost = page.value(drawn.format("lost"))
    assert {each.splitlines()[0] for each in lost} == {"app/catalogue", "cache/1", "cache/2", "cache/3", "blob/7"}
    assert page.complaints == []


def _ask_what_if(page: Page, lease_id: str) -> None:
    page.value(f"document.querySelector('[name=what-if]').value = 'revoke:lease/{lease_id}'")
    page.click("[data-key=ask]")
    page.wait_for_text("#loss", "5 resources would be reclaimed")


def test_events_are_filtered_by_the_node(node: str, page: Page, calm: None) -> None:
    page.view("#/events?prefix=only/")
    page.click('[data-key="about lock"]')
    page.wait_for("""document.querySelector('[data-key="about lock"]')?.ariaPressed === 'true'""", "the filter")
    assert page.value("location.hash") == "#/events?prefix=only%2F&about=lock"
    page.wait_for_text("#main", "live")
    ask(node, "POST", "/leases/acquire", {"resource_id": "only/leased", "client_id": "a", "lease_duration_ms": 60_000})
    for key in ("elsewhere", "only/this"):
        lock(node, key, "a")
    page.wait_for_text("#events", "only/this")
    rows = page.value("[...document.querySelectorAll('#events tr')].map((row) => row.innerText)")
    assert len(rows) == 1 and "lock_granted" in rows[0]
    assert page.complaints == []


def test_names_are_shown_as_the_text_they_are(node: str, page: Page, calm: None) -> None:
    graph(node, (HOSTILE, "harmless"))
    ask(node, "POST", "/leases/acquire", {"resource_id": HOSTILE, "client_id": HOSTILE, "lease_duration_ms": 300_000})
    session = ask(node, "POST", "/sessions", {"client_id": HOSTILE, "ttl_ms": 300_000})["session_id"]
    lock(node, HOSTILE, HOSTILE, session_id=session)
    ask(node, "PUT", f"/queues/{quoted(HOSTILE)}", {})
    for view, place in (
        ("events", "#main"), ("locks", "#main"), (f"locks?key={quoted(HOSTILE)}", "#holder"),
        ("leases?find=%3Cimg", "#leases"), ("sessions?find=%3Cimg", "#sessions"), ("graph?prefix=%3Cimg", "#resources"),
        (f"graph?id={quoted(HOSTILE)}", "#explained"), ("graph?id=harmless", "#explain-path"), ("queues", "#queues"),
        (f"queues?queue={quoted(HOSTILE)}", "#queue-itself"),
    ):  # fmt: skip
        page.view(f"#/{view}")
        if view == "events":
            page.wait_for_text("#main", "live")
            lock(node, HOSTILE + "2", HOSTILE, session_id=session)
        page.wait_for_text(place, HOSTILE)
    assert page.value("window.hit") is None
    assert page.value("document.querySelectorAll('main img, main script, nav img').length") == 0
    assert page.complaints == []


def test_the_keyboard_reaches_everything_and_shows_where_it_is(node: str, page: Page, calm: None) -> None:
    page.view("#/overview")
    page.wait_for("!!document.querySelector('[data-key^=transfer]')", "an action")
    page.value(BEFORE_EVERYTHING)
    page.press("Tab")
    assert page.text(":focus") == "Skip to the content"
    page.press("Enter")
    assert page.value("document.activeElement.id") == "main"
    wanted = page.value(
        "[...document.querySelectorAll('a[href], button, select, input')].filter((e) => e.offsetParent).length"
    )
    page.value(BEFORE_EVERYTHING)
    reached = set()
    for _ in range(wanted + 5):
        page.press("Tab")
        at, outline = page.value(
            "[[...document.querySelectorAll('*')].indexOf(document.activeElement), "
            "getComputedStyle(document.activeElement).outlineStyle]"
        )
        if page.value("document.activeElement === document.body"):
            continue
        reached.add(at)
        assert outline != "none", page.value("document.activeElement.outerHTML")
    assert len(reached) >= wanted
    assert page.complaints == []


def test_a_token_is_sent_with_everything_and_kept_in_the_tab(node: str, page: Page, calm: None) -> None:
    page.view("#/overview")
    page.click("#access")
    page.type("hf_typed-in")
    page.press("Enter")
    page.wait_for_text("#access", "set")
    sent = page.requests(lambda: page.wait_for_text("#connection", "live"))
    assert sent and all(headers.get("Authorization") == "Bearer hf_typed-in" for headers in sent)
    assert page.value("JSON.stringify(localStorage) + document.cookie").find("typed-in") == -1
    page.click("#access")
    page.value("[...document.querySelectorAll('dialog button')].find((each) => each.innerText === 'Forget it').click()")
    page.wait_for_text("#access", "none")
    assert page.value("JSON.stringify(sessionStorage)").find("typed-in") == -1


def test_a_leader_dies_while_the_page_is_open(cluster: Nodes, node: str, page: Page) -> None:
    page.view("#/overview")
    leader = asyncio.run(cluster.leader())
    page.wait_for_text("#verdict", f"{leader} leads in term")
    cluster.send(leader, signal.SIGKILL)
    row = "[...document.querySelectorAll('#cluster tbody tr')].find((row) => row.innerText.startsWith('{}')).innerText"
    page.wait_for(f"{row.format(leader)}.includes('no answer')", f"{leader} to be missed")
    following = asyncio.run(cluster.leader(other_than=leader))
    page.wait_for_text("#verdict", f"{following} leads in term")
    page.wait_for_text("#connection", "live")
    asyncio.run(cluster.ended(leader))
    cluster.start(leader)
    page.wait_for(f"!{row.format(leader)}.includes('no answer')", f"{leader} to be back", 60)
    assert page.value("window.since") == "the beginning", "nobody had to load the page again"


def test_its_own_node_dies_and_comes_back(cluster: Nodes, node: str, page: Page) -> None:
    """The page says what it sees and where else to look, and goes on by itself, the stream of events too."""
    own = cluster.names[cluster.endpoints.index(node)]
    page.view("#/events")
    page.wait_for_text("#main", "live")
    cluster.send(own, signal.SIGKILL)
    page.wait_for_text("#trouble", "has not answered since")
    page.wait_for_text("#connection", "no answer")
    others = [address for address in cluster.endpoints if address != node]
    links = page.value("[...document.querySelectorAll('#trouble a')].map((each) => each.href)")
    assert links == [f"{address}/ui/#/events" for address in others]
    asyncio.run(cluster.ended(own))
    cluster.start(own)
    page.wait_for_text("#connection", "live", 60)
    page.wait_for("document.querySelector('#trouble').hidden", "the warning to go")
    page.wait_for("document.querySelector('main .pill').innerText === 'live'", "the stream to go on")
    lock(others[0], "after/the-restart", "worker-z")
    page.wait_for_text("#events", "after/the-restart")
    assert page.value("window.since") == "the beginning"
    assert all("Failed to load resource" in each or "ERR_" in each for each in page.complaints), page.complaints
