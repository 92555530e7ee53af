"""The documentation as a static site: `make docs` writes it to `site/`. A link that leads nowhere ends the build.

README.md is the first page, every file of docs/ is one, and the API reference is made from the operations that are
served. Files of the repository that the texts link to come along, so the site needs nothing but itself.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from coordinator import __version__
from coordinator.http.app import all_operations
from coordinator.http.openapi import reference

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
API = "API.html"

NAVIGATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Begin",
        (
            "README.md", "docs/QUICKSTART.md", "docs/CONCEPTS.md", "docs/GUARANTEES.md", "docs/FAQ.md",
            "docs/COMPARISON.md",
        ),
    ),
    ("Use", ("docs/SDK.md", "docs/CLI.md", API, "docs/GRPC.md", "docs/TOMBSTONES.md")),
    ("Operate", ("docs/OPERATIONS.md", "docs/DASHBOARD.md", "docs/RUNBOOKS.md", "docs/SECURITY.md", "docs/LIMITS.md")),
    (
        "Look inside",
        (
            "docs/ARCHITECTURE.md", "docs/DIVERGENCE.md", "docs/PROOF.md", "docs/THREATS.md", "docs/BENCHMARKS.md",
            "docs/SCALING.md", "CHANGELOG.md",
        ),
    ),
)  # fmt: skip

_API_ABOUT = (
    "<p>Every operation that a node serves, as data at <code>/openapi.json</code> and as a page at <code>/docs</code>. "
    "Bodies and answers are JSON, or msgpack by Content-Type and Accept. Every operation may also be refused with 400 "
    "(malformed; <code>details.field</code> names what), 401 and 403 where tokens are asked for, 408, 413, 415, 429 "
    "(overloaded or over quota; see Retry-After) and 503 (no leader, or the outcome is unknown).</p>"
)

_LINKED = re.compile(r"""(?:href|src)="([^"]*)\"""")
_NAMED = re.compile(r'id="([^"]+)"')


class BrokenLink(Exception):
    """A text links to something that is not there."""


@dataclass
class Page:
    name: str
    """The file it is written to."""
    title: str
    body: str
    files: set[Path] = field(default_factory=set)
    """What it links to in the repository, beside pages."""


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it, so that a link works in both places."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


# --- from text to page ------------------------------------------------------------------------------------------------


def sources() -> dict[Path, str]:
    """Every text, and the name of its page."""
    texts = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
    return {path: "index.html" if path.name == "README.md" else f"{path.stem}.html" for path in texts}


def page_of(path: Path, names: dict[Path, str]) -> Page:
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(path.read_text(encoding="utf-8"))
    page = Page(names[path], path.stem, "")
    seen: dict[str, int] = {}
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            words = "".join(each.content for each in tokens[place + 1].children or ())
            anchor = slug(words)
            seen[anchor] = seen.get(anchor, -1) + 1
            token.attrSet("id", f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            if token.tag == "h1":
                page.title = words
        for inline in token.children or ():
            _relink(inline, path, names, page)
    page.body = markdown.renderer.render(tokens, markdown.options, {})
    return page


def _relink(token: Token, path: Path, names: dict[Path, str], page: Page) -> None:
    attribute = {"link_open": "href", "image": "src"}.get(token.type)
    target = str(token.attrGet(attribute) or "") if attribute else ""
    if not attribute or not target or re.match(r"[a-z]+:", target) or target.startswith("#"):
        return
    file, _, anchor = target.partition("#")
    found = (path.parent / file).resolve()
    if found in names:
        token.attrSet(attribute, names[found] + (f"#{anchor}" if anchor else ""))
    elif found.is_relative_to(ROOT) and found.exists():
        page.files.add(found)
        token.attrSet(attribute, f"files/{found.relative_to(ROOT)}")
    else:
        raise BrokenLink(f"{path.name} links to {target}, which is not there")


# --- the site ---------------------------------------------------------------------------------------------------------


def build(target: Path) -> list[Page]:
    names = sources()
    pages = [page_of(path, names) for path in names]
    pages.append(Page(API, "API reference", f"<h1>API reference</h1>{_API_ABOUT}{reference(all_operations())}"))
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copy(DOCS / "style.css", target / "style.css")
    menu = {page.name: page.title for page in pages}
    for page in pages:
        (target / page.name).write_text(_html(page, menu), encoding="utf-8")
        for file in page.files:
            _bring(file, target / "files" / file.relative_to(ROOT))
    for broken in broken_links(target):
        raise BrokenLink(broken)
    return pages


def _bring(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        listing = "".join(f"<li>{html.escape(each.name)}</li>" for each in sorted(file.iterdir()))
        to.mkdir(exist_ok=True)
        (to / "index.html").write_text(f"<!doctype html><title>{html.escape(file.name)}</title><ul>{listing}</ul>")
    else:
        shutil.copy(file, to)


def _html(page: Page, menu: dict[str, str]) -> str:
    parts = []
    for heading, members in NAVIGATION:
        links = []
        for member in members:
            name = "index.html" if member == "README.md" else f"{Path(member).stem}.html"
            here = ' aria-current="page"' if name == page.name else ""
            links.append(f'<li><a href="{name}"{here}>{html.escape(menu[name])}</a></li>')
        parts.append(f"<h2>{heading}</h2><ul>{''.join(links)}</ul>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{html.escape(page.title)} · Holdfast</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="style.css">'
        f'</head><body><a class="skip" href="#text">Skip to the text</a><nav aria-label="Pages"><p><b>Holdfast</b> '
        f'{__version__}</p>{"".join(parts)}</nav><main id="text">{page.body}</main></body></html>\n'
    )


def broken_links(target: Path) -> Iterator[str]:
    """Links inside of the site whose file or anchor is not there."""
    anchors: dict[Path, set[str]] = {}
    texts: dict[Path, str] = {path: path.read_text(encoding="utf-8") for path in sorted(target.glob("*.html"))}
    for path, text in texts.items():
        anchors[path] = set(_NAMED.findall(text))
    for path, text in texts.items():
        for link in _LINKED.findall(text):
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = html.unescape(link).partition("#")
            found = target / file if file else path
            if not found.exists():
                yield f"{path.name} links to {link}, which is not there"
            elif anchor and anchor not in anchors.get(found, {anchor}):
                yield f"{path.name} links to {link}, and {found.name} has no such heading"


def main(arguments: list[str]) -> Any:
    target = Path(arguments[0]) if arguments else ROOT / "site"
    try:
        pages = build(target)
    except BrokenLink as broken:
        return f"docs: {broken}"
    print(f"docs: {len(pages)} pages in {target}; open {target / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
