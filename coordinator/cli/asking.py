"""Commands that ask the cluster through the SDK: one client for one command, its errors told with what to do."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from coordinator.cli.arguments import access_token, add_remote, endpoints, tls_context
from coordinator.cli.output import Shown, complain

if TYPE_CHECKING:
    from coordinator.client import Client, HoldfastError

PAGE = 1_000

Handler = Callable[["Client", argparse.Namespace], Awaitable[Shown]]

HINTS = {
    "unknown_namespace": "holdfast namespace list shows those there are; holdfast namespace put NAME makes one",
    "unknown_resource": "holdfast resources list --prefix … shows what is registered",
    "unknown_lease": "holdfast lease list --prefix … shows those there are",
    "unknown_session": "holdfast session list shows those there are",
    "unknown_lock": "holdfast locks list --prefix … shows which are held",
    "unknown_edge": "holdfast edges list --source ID shows those there are",
    "resource_in_use": "holdfast explain ID shows by what; --force has it reclaimed all the same",
    "resource_reclaiming": "holdfast explain ID shows what its clean-up waits for",
    "tombstoned": "holdfast tombstones list shows whom it waits for",
    "unknown_holder": "holdfast holders list shows those there are",
    "namespace_in_use": "holdfast namespace list shows what is in it",
    "quota_exceeded": "holdfast namespace list shows what is used, and of how much",
    "would_close_cycle": "holdfast namespace put NAME --cyclic allows cycles; the collector finds them",
    "unknown_queue": "holdfast queue list shows those there are; holdfast queue put NAME makes one",
    "unknown_task": "holdfast queue tasks QUEUE shows those there are",
    "queue_in_use": "holdfast queue show QUEUE shows what is in it, holdfast queue purge --state … empties it",
    "queue_draining": "holdfast queue resume QUEUE lets it take tasks in again",
    "unauthenticated": "say --token-file FILE, or put the token into $HOLDFAST_ACCESS_TOKEN",
    "forbidden": "holdfast token list shows, to an administrator, which token may do what",
    "unknown_token": "holdfast token list shows those there are",
    "compacted": "holdfast watch --from REVISION goes on from there; without --from, from now on",
    "not_holder": "holdfast locks get KEY shows who has it",
}
_UNREACHABLE = (
    "say where its nodes are with --endpoints or $HOLDFAST_ENDPOINTS; holdfast status shows which answer, and holdfast "
    "up runs some on this machine"
)


def add_asking(commands: Any, name: str, about: str, handler: Handler, **settings: Any) -> Any:
    """A command whose answer `handler` gets from the cluster."""

    def run(options: argparse.Namespace) -> int:
        return ask(options, handler)

    return add_remote(commands, name, about, run, **settings)


def ask(options: argparse.Namespace, handler: Handler) -> int:
    async def shown(client: Client, options: argparse.Namespace) -> int:
        return (await handler(client, options)).print(options)

    return run_with_client(options, shown)


def run_with_client(options: argparse.Namespace, work: Callable[[Client, argparse.Namespace], Awaitable[int]]) -> int:
    """The exit code of `work`, or of what the cluster refused."""
    from coordinator.client import HoldfastError  # noqa: PLC0415 - the SDK's libraries take longer than most commands

    async def run() -> int:
        async with new_client(options) as client:
            return await work(client, options)

    try:
        return asyncio.run(run())
    except HoldfastError as error:
        return refuse(options, error)


def new_client(options: argparse.Namespace) -> Client:
    from coordinator.client import Client  # noqa: PLC0415 - as above

    return Client(
        endpoints(options),
        client_id=getattr(options, "client", None),
        namespace=options.namespace,
        timeout=options.timeout,
        tls=tls_context(options),
        token=access_token(options),
    )


def refuse(options: argparse.Namespace, error: HoldfastError, so_far: str = "") -> int:
    """`so_far`: what was done before, of a command that asks more than once."""
    from coordinator.client import Denied, OutcomeUnknown  # noqa: PLC0415 - as above

    if isinstance(error, Denied):
        return complain(options, so_far + str(error), 1, code=error.code, hint=HINTS.get(error.code, ""))
    unknown = isinstance(error, OutcomeUnknown)
    told = {"code": error.code or ("outcome_unknown" if unknown else "unavailable")}
    return complain(
        options, so_far + str(error), 75, **told, outcome="unknown" if unknown else "retry", hint=_UNREACHABLE
    )


# --- paths and pages --------------------------------------------------------------------------------------------------


def at(*parts: str) -> str:
    """A path; names in it may have slashes."""
    return "".join("/" + quote(part, safe="") for part in parts)


def given(**values: Any) -> dict[str, Any]:
    """Only what was said."""
    return {name: value for name, value in values.items() if value is not None}


def ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


async def pages(client: Client, path: str, query: Mapping[str, str], items: str, limit: int) -> dict[str, Any]:
    """Up to `limit` of a listing, as one answer; `next` is there when there are more."""
    found: list[Any] = []
    after: str | None = None
    while True:
        asked = {**query, "limit": str(min(PAGE, limit - len(found))), **given(after=after)}
        answer: dict[str, Any] = await client.call("GET", path, query=asked)
        found += answer[items]
        after = answer["next"]
        if after is None or len(found) >= limit:
            return {**answer, items: found}


def more(answer: Mapping[str, Any]) -> str:
    return "" if answer["next"] is None else "\n… there are more: say --limit"
