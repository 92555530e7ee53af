"""/ui/: the dashboard. Its files are read once, when the node starts, and served with headers that let nothing else in.

What the page shows it asks of the same interface as any program; nothing is made for it here.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    # Names come from clients: even if one were to be taken for markup, it could run nothing and call nobody.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Asked again every time, and not sent again unless it changed: after an upgrade nobody sees half of the old page.
    "Cache-Control": "no-cache",
}


def _pages(directory: Traversable, below: str = "") -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for each in directory.iterdir():
        if each.is_dir():
            found |= _pages(each, f"{below}{each.name}/")
        else:
            found[below + each.name] = each
    return found


def _page(name: str, body: bytes) -> web.RouteDef:
    content_type = TYPES["." + name.rpartition(".")[2]]
    etag = hashlib.blake2b(body, digest_size=12).hexdigest()
    charset = None if content_type == "image/svg+xml" else "utf-8"

    async def get(request: web.Request) -> web.Response:
        known = request.if_none_match
        if known is not None and any(each.value == etag for each in known):
            unchanged = web.Response(status=304, headers=HEADERS)
            unchanged.etag = etag
            return unchanged
        answer = web.Response(body=body, headers=HEADERS, content_type=content_type, charset=charset)
        answer.etag = etag
        return answer

    return web.get("/ui/" if name == "index.html" else f"/ui/{name}", get)


async def _to_the_page(_: web.Request) -> web.StreamResponse:
    """With the slash, so that what the page names is found beside it."""
    return web.Response(status=308, headers={"Location": "ui/"})


def routes() -> list[web.RouteDef]:
    found = sorted(_pages(files("coordinator") / "ui").items())
    return [web.get("/ui", _to_the_page), *(_page(name, each.read_bytes()) for name, each in found)]
