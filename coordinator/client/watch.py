"""What happens in the cluster, as it happens: every event once and in order, across broken connections and dead nodes.

A watch reads server-sent events from one node. It has no buffer of its own: a reader that is slow slows the node's
sending down, and goes on from the last event it saw when the node has cut it off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from coordinator.client import clock
from coordinator.client.errors import Compacted, Unavailable, denied

if TYPE_CHECKING:
    from coordinator.client.client import Client

PROGRESS_MS = 2_000
SILENT_S = 10.0
"""A node that says nothing for so long, not even how far it is, is taken for dead."""
FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """`id` is the place after it: a watch with `after=id` goes on there."""

    id: str
    revision: int
    kind: str
    namespace: str
    key: str
    owner: str
    lease_id: str | None = None
    session_id: str | None = None
    fencing_token: int | None = None
    waiter_id: str | None = None
    task_id: str | None = None
    incarnation: str | None = None


class _Broken(Exception):
    """This stream ended; another goes on from the same place."""


async def watch(
    client: Client,
    *,
    prefix: str = "",
    kinds: Sequence[str] = (),
    owner: str = "",
    from_revision: int | None = None,
    after: str | None = None,
    patience: float = 60.0,
    progress_ms: int = PROGRESS_MS,
    told: Callable[[str], None] | None = None,
) -> AsyncGenerator[Event, None]:
    """Unavailable is raised when no node was heard for `patience` seconds, Compacted when events are gone.

    `told` gets every place the watch has come to, also those the node tells of at least every `progress_ms`.
    """
    query = {"prefix": prefix, "kinds": ",".join(kinds), "owner": owner, "progress_ms": str(progress_ms)}
    query = {name: said for name, said in query.items() if said}
    if after is None:
        first = await revision(client) + 1 if from_revision is None else from_revision
        after = str(max(0, first - 1))
    pause_s, heard = FIRST_PAUSE_S, clock.now()
    while True:
        endpoint = client.calls.current
        try:
            async with contextlib.aclosing(_stream(client, {**query, "after": after})) as stream:
                async for place, event in stream:
                    after = place or after
                    if event is not None:
                        yield event
                    if told is not None and place:
                        told(place)
                    client.calls.members.streams()
                    pause_s, heard = FIRST_PAUSE_S, clock.now()
        except _Broken as broken:
            if clock.now() - heard >= patience:
                message = f"no node was heard for {patience:g} s: {broken}; watch again with after={after!r}"
                raise Unavailable(message) from broken
        client.calls.members.unreached(endpoint)
        # Others of this client may have gone on to a better one meanwhile.
        client.calls.move_on(endpoint)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


async def revision(client: Client) -> int:
    """One that includes all that was done before this was called."""
    return (await client.calls.call("GET", "/locks", query={"limit": "1"})).revision


async def _stream(client: Client, query: Mapping[str, str]) -> AsyncGenerator[tuple[str, Event | None], None]:
    """Events with their places; places alone, when the node tells how far it is; then _Broken."""
    endpoint = client.calls.current
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0, sock_read=SILENT_S)
    headers = {"Accept": "text/event-stream"}
    try:
        async with client.calls.session().get(
            f"{endpoint}/api/v1/watch", params=query, headers=headers, timeout=timeout
        ) as answer:
            if answer.status != 200:
                raise _refusal(endpoint, answer.status, await answer.read())
            client.calls.members.heard(endpoint, answer.headers)
            async for name, place, document in _messages(answer.content):
                if name == "compacted":
                    raise _compacted(document["revision"])
                if name == "end":
                    raise _Broken(f"{endpoint} ended the watch ({document.get('reason')})")
                yield place, _event(document) if name == "message" else None
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        raise _Broken(f"{endpoint}: {type(error).__name__}: {error}") from error
    raise _Broken(f"{endpoint} closed the watch")


async def _messages(content: aiohttp.StreamReader) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """Whole messages only: what a break left half is not one."""
    name, place, text = "message", "", ""
    async for raw in content:
        line = raw.decode().rstrip("\n")
        if not line:
            if text:
                yield name, place, json.loads(text)
            name, place, text = "message", "", ""
            continue
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "id":
            place = value
        elif field == "data":
            text = value


def _event(document: Mapping[str, Any]) -> Event:
    return Event(**{name: document[name] for name in Event.__slots__ if name in document})


def _refusal(endpoint: str, status: int, raw: bytes) -> Exception:
    try:
        error = json.loads(raw)["error"]
    except (ValueError, KeyError, TypeError):
        return _Broken(f"{endpoint}: HTTP {status}")
    if error.get("code") == "compacted":
        return _compacted(error["details"]["revision"])
    if error.get("outcome") == "denied" and status != 429:
        return denied(status, error)
    return _Broken(f"{endpoint}: {error.get('message')}")


def _compacted(first: int) -> Compacted:
    message = f"events before revision {first} are gone; read the state, then watch with from_revision={first}"
    return Compacted(message, code="compacted", details={"revision": first})
