"""What providers register, and what refers to it: resources and the edges between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload
from urllib.parse import quote

if TYPE_CHECKING:
    from coordinator.client.client import Client

OnLost = Literal["cascade", "orphan", "block"]
MAX_BATCH = 1_000
PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A clean-up: pending, delayed (until `retry_in_ms`), claimed by `worker`, or dead."""

    reclaim_id: str
    state: str
    worker: str | None
    attempt: int
    last_error: str | None
    retry_in_ms: int | None
    claim_left_ms: int | None
    age_ms: int


@dataclass(frozen=True, slots=True)
class Resource:
    """`state`: live, unreferenced, suspect, reclaiming or dead."""

    resource_id: str
    provider: str
    kind: str
    state: str
    reference_count: int
    leases: int
    edges_in: int
    pinned: bool
    on_lost: OnLost
    safety_buffer_ms: int
    lifetime_left_ms: int | None
    hold_left_ms: int
    reclaim: Reclaim | None


@dataclass(frozen=True, slots=True)
class Edge:
    source_resource_id: str
    target_resource_id: str
    on_lost: OnLost


@dataclass(frozen=True, slots=True)
class Root:
    """What keeps a resource: a lease, a pin, its policy, or its safety buffer."""

    kind: str
    resource_id: str
    client_id: str | None
    lease_id: str | None
    session_id: str | None
    ttl_ms: int | None
    hold_left_ms: int | None


@dataclass(frozen=True, slots=True)
class Waiting:
    kind: str
    left_ms: int | None
    reclaim: Reclaim | None
    lane_closed_for_ms: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why it is alive: `path` leads from `root` to it. Or what it waits for. `alive` is None when undecided."""

    resource_id: str
    state: str
    alive: bool | None
    undecided: bool
    root: Root | None
    path: tuple[str, ...]
    waiting_for: Waiting | None
    revision: int


@dataclass(frozen=True, slots=True)
class Loss:
    """What would be reclaimed; `total` is None when undecided."""

    resource_id: str
    what_if: str
    would_reclaim: tuple[str, ...]
    total: int | None
    truncated: bool
    reclaims_this: bool | None
    undecided: bool
    changed_meanwhile: bool
    revision: int


T = TypeVar("T")


def _made(kind: type[T], body: Mapping[str, Any], **parts: Any) -> T:
    """Fields a newer cluster adds are left out."""
    return kind(**{field.name: parts.get(field.name, body[field.name]) for field in fields(kind)})  # type: ignore[arg-type]


def _reclaim(body: Mapping[str, Any] | None) -> Reclaim | None:
    return None if body is None else _made(Reclaim, body)


def _resource(body: Mapping[str, Any]) -> Resource:
    return _made(Resource, body, reclaim=_reclaim(body["reclaim"]))


def quoted(name: str) -> str:
    """As a part of a path, slashes and all."""
    return quote(name, safe="")


def _path(resource_id: str) -> str:
    return "/resources/" + quoted(resource_id)


class Resources:
    """`client.resources`"""

    def __init__(self, client: Client) -> None:
        self._calls = client.calls

    # --- resources ------------------------------------------------------------------------------------------------

    async def register(
        self,
        resource_id: str,
        *,
        provider: str,
        kind: str,
        max_lifetime: float | None = None,
        safety_buffer: float | None = None,
        pinned: bool = False,
        on_lost: OnLost = "cascade",
        timeout: float | None = None,
    ) -> bool:
        """Whether it is new. Known already, it is changed to this. To be referred to before its buffer is over."""
        body = _said(provider, kind, max_lifetime, safety_buffer, pinned, on_lost)
        answer = await self._calls.call("PUT", _path(resource_id), body, timeout=timeout)
        return bool(answer.body["created"])

    async def register_many(
        self,
        resource_ids: Sequence[str],
        *,
        provider: str,
        kind: str,
        max_lifetime: float | None = None,
        safety_buffer: float | None = None,
        pinned: bool = False,
        on_lost: OnLost = "cascade",
        timeout: float | None = None,
    ) -> int:
        """How many are new. A thousand at a time are registered together or not at all."""
        said, created = _said(provider, kind, max_lifetime, safety_buffer, pinned, on_lost), 0
        for start in range(0, len(resource_ids), MAX_BATCH):
            body = {"resource_ids": list(resource_ids[start : start + MAX_BATCH]), **said}
            answer = await self._calls.call("POST", "/resources/batch", body, timeout=timeout)
            created += int(answer.body["created"])
        return created

    async def get(self, resource_id: str, *, timeout: float | None = None) -> Resource:
        return _resource((await self._calls.call("GET", _path(resource_id), timeout=timeout)).body)

    async def list(
        self, *, prefix: str = "", state: str | None = None, provider: str | None = None, timeout: float | None = None
    ) -> AsyncIterator[Resource]:
        """In no order that means anything, page by page; `timeout` is that of a page."""
        query = {"prefix": prefix}
        query |= {name: said for name, said in (("state", state), ("provider", provider)) if said is not None}
        async for body in self._pages("/resources", "resources", query, timeout):
            yield _resource(body)

    async def delete(self, resource_id: str, *, force: bool = False, timeout: float | None = None) -> str:
        """Has it reclaimed, and answers the clean-up's id. `force`: also while something refers to it."""
        query = {"force": "true"} if force else None
        answer = await self._calls.call("DELETE", _path(resource_id), query=query, timeout=timeout)
        return str(answer.body["reclaim_id"])

    # --- edges ----------------------------------------------------------------------------------------------------

    async def add_edge(
        self, source: str, target: str, *, on_lost: OnLost | None = None, timeout: float | None = None
    ) -> bool:
        """`source` keeps `target` as long as it is kept itself. Whether that is new."""
        return await self.add_edges([(source, target)], on_lost=on_lost, timeout=timeout) == 1

    async def add_edges(
        self, edges: Iterable[tuple[str, str]], *, on_lost: OnLost | None = None, timeout: float | None = None
    ) -> int:
        """How many are new. A thousand at a time are added together or not at all."""
        ends = [{"source_resource_id": source, "target_resource_id": target} for source, target in edges]
        created = 0
        for start in range(0, len(ends), MAX_BATCH):
            body: dict[str, Any] = {"edges": ends[start : start + MAX_BATCH]}
            if on_lost is not None:
                body["on_lost"] = on_lost
            answer = await self._calls.call("POST", "/edges/batch", body, timeout=timeout)
            created += int(answer.body["created"])
        return created

    async def remove_edge(self, source: str, target: str, *, timeout: float | None = None) -> int:
        """How many leases and edges still refer to the target."""
        body = {"source_resource_id": source, "target_resource_id": target}
        answer = await self._calls.call("DELETE", "/edges", body, timeout=timeout)
        return int(answer.body["remaining_reference_count"])

    async def edges(
        self, *, source: str | None = None, target: str | None = None, timeout: float | None = None
    ) -> AsyncIterator[Edge]:
        """Of a source or to a target, the newest first; with both, the one between them."""
        query = {name: said for name, said in (("source", source), ("target", target)) if said is not None}
        async for body in self._pages("/edges", "edges", query, timeout):
            yield _made(Edge, body)

    # --- why ------------------------------------------------------------------------------------------------------

    @overload
    async def explain(self, resource_id: str, *, timeout: float | None = None) -> Explanation: ...

    @overload
    async def explain(self, resource_id: str, *, what_if: str, timeout: float | None = None) -> Loss: ...

    async def explain(
        self, resource_id: str, *, what_if: str | None = None, timeout: float | None = None
    ) -> Explanation | Loss:
        """Why it is there. `what_if`: what would go, if for example `delete:resource/<id>` or `revoke:client/<id>`."""
        query = None if what_if is None else {"what_if": what_if}
        body = (await self._calls.call("GET", _path(resource_id) + "/explain", query=query, timeout=timeout)).body
        if what_if is not None:
            return _made(Loss, body, would_reclaim=tuple(body["would_reclaim"]))
        waiting, root = body["waiting_for"], body["root"]
        return _made(
            Explanation,
            body,
            path=tuple(body["path"]),
            root=None if root is None else _made(Root, root),
            waiting_for=None if waiting is None else _made(Waiting, waiting, reclaim=_reclaim(waiting["reclaim"])),
        )

    async def _pages(
        self, path: str, items: str, query: Mapping[str, str], timeout: float | None
    ) -> AsyncIterator[Mapping[str, Any]]:
        after: str | None = None
        while True:
            asked = {**query, "limit": str(PAGE), **({} if after is None else {"after": after})}
            body = (await self._calls.call("GET", path, query=asked, timeout=timeout)).body
            for item in body[items]:
                yield item
            after = body["next"]
            if after is None:
                return


def _said(
    provider: str, kind: str, max_lifetime: float | None, safety_buffer: float | None, pinned: bool, on_lost: OnLost
) -> dict[str, Any]:
    said: dict[str, Any] = {"provider": provider, "kind": kind, "pinned": pinned, "on_lost": on_lost}
    if max_lifetime is not None:
        said["max_lifetime_ms"] = round(max_lifetime * 1000)
    if safety_buffer is not None:
        said["safety_buffer_ms"] = round(safety_buffer * 1000)
    return said
