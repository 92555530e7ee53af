"""OpenAPI 3.1 at /openapi.json and a readable page at /docs, both made from the operations that are served."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from coordinator import __version__
from coordinator.http.bodies import JSON, MSGPACK, PACKED
from coordinator.http.fields import Field
from coordinator.http.needs import Place
from coordinator.http.operations import IDEMPOTENCY, NAMESPACE, REQUEST_ID, Operation
from coordinator.http.schemas import ERROR, Schema

_MEANINGS = {
    200: "Done.",
    101: "The connection is a WebSocket now.",
    400: "Malformed or out of bounds; `details.field` names what.",
    401: "No access token, or one that is not known.",
    403: "Not allowed, or not the holder any more.",
    404: "Unknown.",
    409: "Held by another, or in conflict.",
    410: "Gone: compacted (`details.revision` is where to start again), being reclaimed, dead and with copies left "
    "(`tombstoned`), or a page that is no more.",
    408: "The headers or the body did not come in time.",
    413: "Too large.",
    415: "Neither JSON nor msgpack.",
    422: "The lifetime is reached, or an edge would close a cycle (`details.path`).",
    429: "Overloaded or over quota; see Retry-After.",
    500: "A bug in this node; the outcome is unknown.",
    503: "No leader, or the outcome is unknown: `outcome` says which.",
}
_ALWAYS = (400, 408, 413, 415, 429, 503)


def openapi(operations: Iterable[Operation]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = re.sub(r"\{(\w+):[^}]*\}", r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Leases, locks and sessions from one replicated log. Any node takes any request. "
            f"Bodies and answers are JSON, or {MSGPACK} by Content-Type and Accept: the same fields.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An access token, on nodes that ask for one (docs/SECURITY.md).",
                }
            },
        },
    }


def _refusals(operation: Operation) -> list[int]:
    denied = () if operation.need.place == "open" else (401, 403)
    return sorted({*_ALWAYS, *denied, *operation.denials})


def _operation(operation: Operation, path: str) -> dict[str, Any]:
    answers = operation.answers.items()
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}_{path.removeprefix('/api/v1')}").strip("_"),
        "summary": operation.about,
        "tags": [operation.tag],
        "parameters": _parameters(operation),
        "responses": {str(status): _answer(schema, status, operation.form) for status, schema in answers}
        | {str(status): _error(status) for status in _refusals(operation)},
        # Either: a node that does not ask for tokens takes requests without one.
        "security": [] if operation.need.place == "open" else [{"token": []}, {}],
    }
    body = operation.asked_in_body()
    if body is not None:
        schema = body.schema()
        forms = ", ".join((MSGPACK, *operation.also))
        described["requestBody"] = {
            "required": "required" in schema,
            "description": f"Also as {forms}, by Content-Type.",
            "content": {JSON: {"schema": schema}},
        }
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found = [_parameter(name, "path", field) for name, field in operation.places.fields.items()]
    found += [_parameter(name, "query", field) for name, field in operation.asked_in_url().fields.items()]
    found += [_parameter(name, "header", field) for name, field in operation.headers.fields.items()]
    if operation.spaced:
        found.append(
            {"name": NAMESPACE, "in": "header", "schema": {"type": "string", "minLength": 1, "default": "default"}}
        )
    if operation.writes:
        found.append(_parameter(IDEMPOTENCY, "header", REQUEST_ID))
    return found


def _parameter(name: str, where: str, field: Field) -> dict[str, Any]:
    schema = field.schema()
    if field.default is not None:
        schema["default"] = field.default
    shown: dict[str, Any] = {"name": name, "in": where, "required": where == "path" or field.required, "schema": schema}
    if schema.get("type") == "array":
        shown |= {"style": "form", "explode": False}
    return shown | ({"description": field.about} if field.about else {})


def _answer(schema: Mapping[str, Any], status: int, form: str = JSON) -> dict[str, Any]:
    described: dict[str, Any] = {"description": _MEANINGS[status], "headers": _headers()}
    if schema:
        described["content"] = {form: {"schema": schema}}
    return described


def _error(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return _answer(schema, status)


def _headers() -> dict[str, Schema]:
    return {
        "X-Holdfast-Revision": {"schema": {"type": "integer"}, "description": "What the node has applied."},
        "X-Holdfast-Leader": {"schema": {"type": "string"}, "description": "The leader it knows, or empty."},
        "X-Holdfast-Members": {
            "schema": {"type": "integer"},
            "description": "Greater than in an answer before: there are other members, see /api/v1/cluster.",
        },
    }


# --- for people -------------------------------------------------------------------------------------------------------

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Holdfast API</title><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2430}}
h2{{border-bottom:1px solid #d5dbe3;margin-top:3rem}} code,pre{{font-family:ui-monospace,monospace;font-size:.9em}}
pre{{background:#f4f6f9;padding:.8rem;overflow-x:auto}} table{{border-collapse:collapse;width:100%}}
td,th{{text-align:left;padding:.25rem .75rem .25rem 0;vertical-align:top;border-bottom:1px solid #eef1f5}}
</style></head><body><h1>Holdfast {version}</h1><p>{about}
The same as data: <a href="/openapi.json">/openapi.json</a>.</p>{parts}</body></html>
"""


def page(operations: Iterable[Operation]) -> str:
    about = "Bodies and answers are JSON, or msgpack by Content-Type and Accept. Any node takes any request."
    return _PAGE.format(version=__version__, about=about, parts=reference(operations))


def reference(operations: Iterable[Operation]) -> str:
    """Every operation as HTML, by noun."""
    parts: dict[str, list[str]] = {}
    for operation in operations:
        parts.setdefault(operation.tag, []).append(_section(operation))
    return "".join(f"<h2>{html.escape(tag)}</h2>{''.join(sections)}" for tag, sections in parts.items())


def _section(operation: Operation) -> str:
    path = re.sub(r":[^}]*\}", "}", operation.path)
    rows = [(name, "path", field) for name, field in operation.places.fields.items()]
    rows += [(name, "url", field) for name, field in operation.asked_in_url().fields.items()]
    body = operation.asked_in_body()
    rows += [(name, "body", field) for name, field in (body.fields if body else {}).items()]
    table = "".join(
        f"<tr><td><code>{name}</code></td><td>{where}</td><td>{html.escape(_bounds(field))}</td>"
        f"<td>{html.escape(field.about)}</td></tr>"
        for name, where, field in rows
    )
    also = f"<p>Also as <code>{PACKED}</code>.</p>" if PACKED in operation.also else ""
    return (
        f"<h3><code>{operation.method} {html.escape(path)}</code></h3><p>{html.escape(operation.about)}</p>{also}"
        f"<table><tr><th>field</th><th>in</th><th>what</th><th>about</th></tr>{table}</table>"
        f"{_example(operation, path)}{_answers(operation)}"
    )


def _answers(operation: Operation) -> str:
    """What comes back, and what may be refused for a reason of this operation's own."""
    told = "".join(
        f"<pre>{status} {html.escape(_outline(schema)) if schema else _MEANINGS[status]}</pre>"
        for status, schema in operation.answers.items()
    )
    refused = "; ".join(f"<b>{status}</b> {html.escape(_MEANINGS[status].rstrip('.'))}" for status in operation.denials)
    return f"{told}<p>{f'Refused: {refused}. ' if refused else ''}{_NEEDS[operation.need.place]}.</p>".replace(
        "RIGHT", operation.need.right
    )


_NEEDS: dict[Place, str] = {
    "open": "Needs no token",
    "anywhere": "Needs any token",
    "cluster": "Needs the right to <b>RIGHT</b> everywhere",
    "namespace": "Needs the right to <b>RIGHT</b> in its namespace",
}


def _outline(schema: Mapping[str, Any], depth: int = 0) -> str:
    """A schema as what it describes would look: names, and what kind of value each has."""
    if "anyOf" in schema:
        return " or ".join(_outline(each, depth) for each in schema["anyOf"])
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"[{_outline(schema.get('items', {}), depth)}, …]"
    if kind == "object" and schema.get("properties"):
        inner = "  " * (depth + 1)
        rows = [f"{inner}{name}: {_outline(each, depth + 1)}" for name, each in schema["properties"].items()]
        return "{\n" + ",\n".join(rows) + "\n" + "  " * depth + "}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _bounds(field: Field) -> str:
    if field.required:
        return f"{field.wanted()}; required"
    return field.wanted() + (f"; default {field.default}" if field.default is not None else "")


def _example(operation: Operation, path: str) -> str:
    if operation.method == "GET" or operation.body is None:
        return ""
    said = {
        name: (field.schema().get("examples") or [None])[0]
        for name, field in operation.body.fields.items()
        if field.required
    }
    if None in said.values():
        return ""
    return f"<pre>curl -X {operation.method} http://127.0.0.1:7101{path} -d '{html.escape(json.dumps(said))}'</pre>"


# --- routes -----------------------------------------------------------------------------------------------------------


def routes(operations: list[Operation]) -> list[web.RouteDef]:
    document = json.dumps(openapi(operations), ensure_ascii=False).encode()
    written = page(operations).encode()

    async def get_openapi(_: web.Request) -> web.Response:
        return web.Response(body=document, content_type=JSON)

    async def get_docs(_: web.Request) -> web.Response:
        return web.Response(body=written, content_type="text/html", charset="utf-8")

    return [web.get("/openapi.json", get_openapi), web.get("/docs", get_docs)]
