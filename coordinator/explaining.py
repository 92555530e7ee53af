"""Searches over the graph, driven a slice at a time: others work in between, and the answer is checked at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

from coordinator.machine import edges, graphreads, resources
from coordinator.machine.explain import Change, LossSearch, RootSearch, TooManyVisits, Walk, holder, revoke_lease
from coordinator.machine.graph import DELAYED, LIVE
from coordinator.machine.leases import effective_expiry
from coordinator.machine.names import CLIENT
from coordinator.machine.namespaces import Namespace
from coordinator.machine.resources import Support
from coordinator.machine.state import State
from coordinator.service import Service

SEARCHES_MAX = 3
"""So often a search whose answer was overtaken begins again."""
SHOWN_MAX = 1_000

WaitingFor = Literal["safety_buffer", "collection", "worker"]


@dataclass(frozen=True, slots=True)
class Root:
    """What keeps itself, and with it all it refers to."""

    kind: Support
    resource_id: str
    client_id: str | None = None
    lease_id: int | None = None
    session_id: int | None = None
    ttl_ms: int | None = None
    hold_left_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """`alive` is None when that was not decided: too many edges, or the graph changed too fast."""

    resource: graphreads.ResourceView
    revision: int
    alive: bool | None
    root: Root | None = None
    path: tuple[str, ...] = ()
    waiting_for: WaitingFor | None = None
    left_ms: int | None = None
    closed_ms: int | None = None
    """How long its lane hands out nothing yet."""


@dataclass(frozen=True, slots=True)
class Loss:
    """`total` is None when it was not decided. `changed`: the graph was another at the end than at the beginning."""

    revision: int
    total: int | None
    shown: tuple[str, ...] = ()
    reclaims_this: bool | None = None
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """`what` goes if `verb` is done to it: a session or lease by its number, the others by their names."""

    what: Literal["session", "lease", "client", "resource", "edge"]
    number: int = 0
    names: tuple[str, ...] = ()
    """Of an edge: how source and target may be meant, in turn, because ids may have slashes."""


class Overtaken(Exception):
    """A snapshot took the place of the state that was searched."""


async def _drive(service: Service, walk: Walk, steps: Generator[None, None, Any]) -> None:
    for _ in steps:
        await asyncio.sleep(0)
        if service.machine.state is not walk.state:
            raise Overtaken


def _name(state: State, slot: int) -> str:
    return state.names.text(state.resources.name[slot])


# --- why it is alive --------------------------------------------------------------------------------------------------


async def explain(service: Service, namespace: str, resource_id: str) -> Explanation | None:
    """None when there is no such resource."""
    async with service.searches:
        for _ in range(SEARCHES_MAX):
            space = service.machine.state.namespaces.by_name.get(namespace)
            slot = -1 if space is None else resources.find(service.machine.state, space, resource_id)
            if slot < 0:
                return None
            search = RootSearch(service.machine.state, slot)
            try:
                await _drive(service, search, search.run())
            except TooManyVisits:
                break
            except Overtaken:
                continue
            if search.confirmed(service.machine.events_since(search.began)):
                return _explained(service, slot, search)
    view = (
        service.machine.resource(namespace, resource_id, service.now_ms()) if service.machine.knows(namespace) else None
    )
    return None if view is None else Explanation(view, service.machine.revision, None)


def _explained(service: Service, slot: int, search: RootSearch) -> Explanation:
    state, now_ms = search.state, service.now_ms()
    view = graphreads.resource(state, slot, now_ms)
    if view.reclaim is not None:
        waiting_for, left_ms = _waiting(state, slot, now_ms)
        closed_ms = _closed_ms(state, slot, now_ms) if waiting_for == "worker" else None
        return Explanation(
            view, state.revision, alive=False, waiting_for=waiting_for, left_ms=left_ms, closed_ms=closed_ms
        )
    if search.root is None or search.support is None:
        return Explanation(view, state.revision, alive=False, waiting_for="collection")
    root = _root(state, search.root, search.support, now_ms)
    path = tuple(_name(state, each) for each in search.path)
    waiting: WaitingFor | None = "safety_buffer" if search.support == "buffer" else None
    return Explanation(
        view, state.revision, alive=True, root=root, path=path, waiting_for=waiting, left_ms=root.hold_left_ms
    )


def _root(state: State, slot: int, support: Support, now_ms: int) -> Root:
    resource_id = _name(state, slot)
    if support == "buffer":
        return Root(support, resource_id, hold_left_ms=max(0, state.resources.hold_ms[slot] - now_ms))
    if support != "lease":
        return Root(support, resource_id)
    lease = holder(state, slot, now_ms)
    session = state.leases.session_of(lease)
    return Root(
        support, resource_id, state.names.text(state.leases.owner[lease]), state.lease_id(lease),
        state.session_id(session - 1) if session else None, max(0, effective_expiry(state, lease) - now_ms),
    )  # fmt: skip


def _waiting(state: State, slot: int, now_ms: int) -> tuple[WaitingFor, int | None]:
    """What a resource that is on its way out waits for."""
    table = state.resources
    if slot in state.dying or table.state[slot] == LIVE:
        return "collection", None
    if table.state[slot] == DELAYED and table.hold_ms[slot] > now_ms:
        return "safety_buffer", table.hold_ms[slot] - now_ms
    return "worker", None


def _closed_ms(state: State, slot: int, now_ms: int) -> int:
    lanes = state.lanes.get(state.resources.provider[slot], {})
    lane = lanes.get(state.resources.kind[slot])
    return 0 if lane is None else max(0, lane.closed_until_ms - now_ms)


# --- what would go ----------------------------------------------------------------------------------------------------


async def what_if(service: Service, namespace: str, resource_id: str, asked: Question) -> Loss | str:
    """Or the code of what there is not."""
    async with service.searches:
        for _ in range(SEARCHES_MAX):
            state = service.machine.state
            space = state.namespaces.by_name.get(namespace)
            search = LossSearch(state, Change())
            steps = "unknown_namespace" if space is None else _prepared(search, space, asked)
            if isinstance(steps, str) or space is None:
                return str(steps)
            try:
                await _drive(service, search, steps)
                await _drive(service, search, search.run())
            except TooManyVisits:
                break
            except Overtaken:
                continue
            return _loss(search, resources.find(state, space, resource_id))
    return Loss(service.machine.revision, None)


def _prepared(search: LossSearch, space: Namespace, asked: Question) -> Generator[None, None, None] | str:
    """The search for what goes first, or the code of what there is not."""
    state, change = search.state, search.change
    nothing: Generator[None, None, None] = (None for _ in ())
    if asked.what == "client":
        client = state.names.find(CLIENT, space.number, asked.names[0])
        return search.revoke_client(client) if client >= 0 else nothing
    if asked.what == "session":
        session = state.slot_of(state.sessions, asked.number)
        known = session >= 0 and state.namespace_of(state.sessions.owner[session]) is space
        return search.revoke_session(session) if known else "unknown_session"
    if asked.what == "lease":
        lease = state.slot_of(state.leases, asked.number)
        if lease < 0 or state.namespace_of(state.leases.owner[lease]) is not space:
            return "unknown_lease"
        revoke_lease(state, change, lease)
    elif asked.what == "resource":
        slot = resources.find(state, space, asked.names[0])
        if slot < 0:
            return "unknown_resource"
        change.resource = slot
    else:
        change.edge = _edge(state, space, asked.names)
        if change.edge is None:
            return "unknown_edge"
    return nothing


def _edge(state: State, space: Namespace, names: tuple[str, ...]) -> int | None:
    for source_id, target_id in zip(names[::2], names[1::2], strict=True):
        source, target = (resources.find(state, space, each) for each in (source_id, target_id))
        edge = edges.find(state, source, target) if source >= 0 and target >= 0 else -1
        if edge >= 0:
            return edge
    return None


def _loss(search: LossSearch, slot: int) -> Loss:
    state, lost = search.state, search.lost
    known = [state.slot_of(state.resources, number) for number in lost[:SHOWN_MAX]]
    shown = tuple(_name(state, each) for each in known if each >= 0)
    gone = slot >= 0 and slot in search.reached and slot not in search.stays and resources.is_usable(state, slot)
    return Loss(state.revision, len(lost), shown, gone, changed=state.revision != search.began)
