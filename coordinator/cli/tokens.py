"""`holdfast token create | list | show | rotate | revoke | root`, and `holdfast audit`."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands, add_command, add_json, add_noun, count, not_negative, positive
from coordinator.cli.asking import add_asking, at, given, more, ms, pages
from coordinator.cli.files import replacing
from coordinator.cli.output import Shown, complain, fields, lasting, plain, table
from coordinator.tokens import ROOT, digest_of, new_token

if TYPE_CHECKING:
    from coordinator.client import Client

_RIGHTS = ("read", "write", "admin")
_SCOPE = "NAMESPACE:RIGHT[:PREFIX]"


def _scope(text: str) -> dict[str, str]:
    namespace, _, rest = text.partition(":")
    right, _, prefix = rest.partition(":")
    if not namespace or right not in _RIGHTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not {_SCOPE}, the right one of {', '.join(_RIGHTS)}")
    return {"namespace": namespace, "right": right, "prefix": prefix}


def _scopes(token: dict[str, Any]) -> str:
    shown = (":".join((each["namespace"], each["right"], each["prefix"])).removesuffix(":") for each in token["scopes"])
    return ", ".join(shown)


async def _create(client: Client, options: argparse.Namespace) -> Shown:
    asked = given(ttl_ms=ms(options.expires))
    body = {"identity": options.identity, "scopes": options.scope, "bind_client_id": options.bind, **asked}
    with _file(options) as file:
        return _once(await client.call("POST", "/tokens", body), options.out, file)


async def _rotate(client: Client, options: argparse.Namespace) -> Shown:
    with _file(options) as file:
        answer = await client.call("POST", at("tokens", options.id, "rotate"), {"overlap_ms": ms(options.overlap)})
        return _once(answer, options.out, file)


def _file(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """Where it goes, opened before it is asked for: a token that cannot be written is lost."""
    return nullcontext() if options.out is None else replacing(options.out)


def _once(answer: dict[str, Any], out: Path | None, file: Any) -> Shown:
    """The token on standard output, alone and only here, or into a file nobody else can read."""
    if out is None:
        return Shown(answer, answer["token"])
    _write(file, answer["token"])
    kept = {**answer, "token": None, "file": str(out)}
    return Shown(kept, f"token {answer['token_id']} is in {out}")


def _write(file: Any, token: str) -> None:
    file.write(f"{token}\n".encode())


async def _list(client: Client, options: argparse.Namespace) -> Shown:
    answer = await pages(client, "/tokens", {}, "tokens", options.limit)
    rows = [
        [each["token_id"], each["identity"], each["bind_client_id"], _scopes(each), _expiry(each)]
        for each in answer["tokens"]
    ]
    shown = table(("token", "identity", "bound", "scopes", "expires"), rows, empty="no access tokens")
    return Shown(answer, shown + more(answer))


def _expiry(token: dict[str, Any]) -> str:
    left_ms = token["expires_in_ms"]
    if left_ms is None:
        return "never"
    return f"in {lasting(left_ms)}" if left_ms else "expired"


async def _show(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("GET", at("tokens", options.id))
    shown = fields(
        (
            ("token", answer["token_id"]),
            ("identity", answer["identity"]),
            ("bound", answer["bind_client_id"]),
            ("scopes", _scopes(answer)),
            ("age", lasting(answer["age_ms"])),
            ("rotated", None if answer["rotated_ms_ago"] is None else f"{lasting(answer['rotated_ms_ago'])} ago"),
            ("expires", _expiry(answer)),
        )
    )
    return Shown(answer, shown)


async def _revoke(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("DELETE", at("tokens", options.id))
    return Shown(answer, f"token {plain(answer['token_id'])} revoked")


def _root(options: argparse.Namespace) -> int:
    path: Path = options.file
    token = new_token(ROOT)
    if path.exists():
        return complain(options, f"{path} is there already; a root token is replaced by hand", 1)
    with replacing(path) as file:
        _write(file, token)
    document = {"file": str(path), "digest": f"sha256:{digest_of(token).hex()}"}
    told = f"a root token is in {path}: name it as root_token_file on every node, and keep it from everybody else"
    return Shown(document, f"{told}\n(nodes need no more than its digest in that file: {document['digest']})").print(
        options
    )


async def _audit(client: Client, options: argparse.Namespace) -> Shown:
    found: list[dict[str, Any]] = []
    query: dict[str, str] = {}
    while True:
        asked = {**query, "limit": str(min(1_000, options.limit - len(found)))}
        answer = await client.call("GET", "/audit", query=asked)
        found += answer["actions"]
        if answer["next"] is None or len(found) >= options.limit:
            break
        query = {"before": str(answer["next"])}
    rows = [
        [
            each["number"], f"{lasting(each['age_ms'])} ago", each["identity"], each["token_id"], each["action"],
            each["namespace"], each["subject"], each["outcome"],
        ]
        for each in found
    ]  # fmt: skip
    columns = ("number", "when", "who", "token", "action", "namespace", "subject", "outcome")
    return Shown({**answer, "actions": found}, table(columns, rows, empty="nothing was done by force yet"))


def add(commands: Commands) -> None:
    actions = add_noun(commands, "token", "make, list and revoke access tokens")
    creating = add_asking(actions, "create", "make an access token; it is shown this once", _create)
    creating.add_argument("--identity", required=True, metavar="NAME", help="who uses it")
    creating.add_argument(
        "--scope", required=True, action="append", type=_scope, metavar=_SCOPE,
        help="what it allows: read, write or admin in a namespace (* for all), on keys that begin so; may be repeated",
    )  # fmt: skip
    creating.add_argument("--expires", type=positive, metavar="S", help="after so many seconds (default: never)")
    creating.add_argument(
        "--bind", action="store_true", help="client ids that come with it must be NAME, or begin with NAME/"
    )
    rotating = add_asking(actions, "rotate", "give a token another secret; it is shown this once", _rotate)
    rotating.add_argument("id", metavar="ID")
    rotating.add_argument(
        "--overlap", type=not_negative, default=0.0, metavar="S", help="how long the old secret is taken beside it"
    )
    for making in (creating, rotating):
        making.add_argument("--out", type=Path, metavar="FILE", help="write it there, mode 0600, and do not print it")
    listing = add_asking(actions, "list", "access tokens, without their secrets", _list)
    listing.add_argument("--limit", type=count, default=1_000, metavar="N", help="at most so many (default: 1000)")
    for name, about, handler in (
        ("show", "one access token", _show),
        ("revoke", "refuse a token from now on", _revoke),
    ):
        add_asking(actions, name, about, handler).add_argument("id", metavar="ID")
    root = add_command(actions, "root", "make the first administrator's token, for root_token_file", _root)
    root.add_argument("file", type=Path, metavar="FILE")
    add_json(root)
    auditing = add_asking(commands, "audit", "who did what only administrators do, newest first", _audit)
    auditing.add_argument("--limit", type=count, default=100, metavar="N", help="at most so many (default: 100)")
