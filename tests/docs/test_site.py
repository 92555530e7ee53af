"""The documentation is one site: every page is in its menu, links lead somewhere, nothing comes from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import build


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    build.build(target)
    return target


def test_every_page_is_in_the_menu_of_every_page(site: Path) -> None:
    pages = {path.name for path in site.glob("*.html")}
    for path in site.glob("*.html"):
        menu = path.read_text().partition("</nav>")[0]
        assert set(re.findall(r'<a href="([^"#]+)"', menu)) == pages, path.name
        assert menu.count("aria-current") == 1


@pytest.mark.parametrize("page", ["GUARANTEES.md", "THREATS.md"])
def test_what_is_said_to_show_a_claim_is_there(page: str) -> None:
    """Files by their paths; behind one, parts of the names of its tests."""
    rows = [row for row in (build.DOCS / page).read_text().splitlines() if row.startswith("|") and "`tests/" in row]
    assert len(rows) > 5
    for row in rows:
        file = ""
        for said in re.findall(r"`([^`]+)`", row.rpartition("|")[0].rpartition("|")[2]):
            if said.startswith("tests/"):
                file = said
                assert (build.ROOT / said).exists(), said
            elif "…" in said:
                pattern = ".*".join(map(re.escape, said.split("…")))
                assert re.search(rf"def test_\w*{pattern}", (build.ROOT / file).read_text()), (file, said)


def test_it_needs_nothing_but_itself(site: Path) -> None:
    for path in site.glob("*.html"):
        text = path.read_text()
        brought = re.findall(r'src="([^"]+)"', text) + re.findall(r'<link [^>]*href="([^"]+)"', text)
        assert [each for each in brought if "//" in each] == [], path.name
        assert "<script" not in text


def test_the_reference_has_every_operation(site: Path) -> None:
    text = (site / "API.html").read_text()
    assert text.count("<h3><code>") == len(build.all_operations())
    assert text.count("<h1>") == 1
    # What comes back, what is refused, and what it needs.
    acquire = text.partition("POST /api/v1/locks/acquire</code>")[2].partition("<h3>")[0]
    assert "fencing_token: integer" in acquire and "<b>409</b> Held by another" in acquire
    assert "the right to <b>write</b> in its namespace" in acquire


def test_a_link_that_leads_nowhere_is_found(site: Path) -> None:
    assert list(build.broken_links(site)) == []
    page = site / "FAQ.html"
    kept = page.read_text()
    try:
        page.write_text(kept + '<a href="SDK.html#nowhere">x</a><a href="MISSING.html">y</a><img src="gone.svg">')
        assert len(list(build.broken_links(site))) == 3
    finally:
        page.write_text(kept)


def test_a_file_that_is_not_there_ends_the_build(tmp_path: Path) -> None:
    broken = tmp_path / "BROKEN.md"
    broken.write_text("[here](#there) [and](NOWHERE.md)")
    with pytest.raises(build.BrokenLink, match=r"NOWHERE\.md"):
        build.page_of(broken, {broken: "BROKEN.html"})


def test_headings_are_linked_as_github_links_them() -> None:
    assert build.slug("What's new? `holdfast lock`") == "whats-new-holdfast-lock"
    assert build.slug("A node is down") == "a-node-is-down"
