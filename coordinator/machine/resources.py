"""Resources and what refers to them: leases from outside, edges from each other. Counts are exact after every command.

A LIVE resource is *kept* by a lease, a pin, a policy or a hold; otherwise only by edges, or by nothing. Whenever one of
these ends, `look` files the resource where it belongs: with nothing left it is garbage, with edges left it is a
suspect, because the edges may come from a cycle that nothing keeps. Every way to lose support must end in `look`:
that is why no garbage is overlooked.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from coordinator.machine import tombstones
from coordinator.machine.columns import Slots
from coordinator.machine.commands import PutResources
from coordinator.machine.graph import (
    CASCADE,
    DYING,
    LIVE,
    NO_LIST,
    ORPHAN,
    ORPHANED,
    PINNED,
    POLICIES,
    SUSPECTS,
    UNREFERENCED,
    push,
    take_out,
)
from coordinator.machine.levels import FORMERS
from coordinator.machine.limits import MAX_KINDS, NEVER_MS
from coordinator.machine.names import KIND, PROVIDER, RESOURCE
from coordinator.machine.namespaces import RESOURCES, Namespace, over_quota
from coordinator.machine.results import Denied, ResourcesPut, Result
from coordinator.machine.state import State

Support = Literal["lease", "pinned", "orphan", "blocked", "buffer"]


# --- reading one ----------------------------------------------------------------------------------------------------


def find(state: State, namespace: Namespace, resource_id: str) -> int:
    """The slot of a registered resource, or -1."""
    name = state.names.find(RESOURCE, namespace.number, resource_id)
    return -1 if name < 0 else state.resource_of(name)


def references(state: State, slot: int) -> int:
    count: int = state.names.active[state.resources.name[slot]] + state.resources.in_count[slot]
    return count


def references_to(state: State, name: int) -> int:
    """Of a resource, registered or not, or of a lock: leases on it, and edges to it."""
    count: int = state.names.active[name]
    return count + state.resources.in_count[state.resource_of(name)] if state.names.registered[name] else count


def kept_by(state: State, slot: int) -> Support | None:
    """Why a LIVE resource is no garbage even if nothing that is alive has an edge to it."""
    table = state.resources
    if state.names.active[table.name[slot]]:
        return "lease"
    if table.flags[slot] & PINNED:
        return "pinned"
    if table.flags[slot] & ORPHANED or table.on_lost[slot] == ORPHAN:
        return "orphan"
    if table.blocks[slot]:
        return "blocked"
    if table.hold_ms[slot] > state.now_ms:
        return "buffer"
    return None


def is_condemned(state: State, slot: int) -> bool:
    """Found to be garbage with others, and not worked off yet."""
    return bool(state.condemned) and state.resources.candidate[slot] in state.condemned


def is_usable(state: State, slot: int) -> bool:
    return state.resources.state[slot] == LIVE and not is_condemned(state, slot)


def takes_references(state: State, slot: int) -> bool:
    """Not past its lifetime either, whether or not a sweep has reached it."""
    return is_usable(state, slot) and state.resources.deadline_ms[slot] > state.now_ms


def reclaiming(resource_id: str) -> Denied:
    message = f"{resource_id} is being reclaimed: nothing referred to it any more, or its lifetime ended"
    return Denied("resource_reclaiming", message, {"resource_id": resource_id})


def refused(state: State, name: int) -> Denied | None:
    """The denial, if the resource of this name takes no new reference."""
    if not state.names.registered[name]:
        return tombstones.refused(state, name)
    if takes_references(state, state.resource_of(name)):
        return None
    return reclaiming(state.names.text(name))


# --- gaining and losing ---------------------------------------------------------------------------------------------


def is_orphan(state: State, slot: int) -> bool:
    """LIVE, and nothing refers to it: garbage soon, or kept by policy."""
    table = state.resources
    return table.state[slot] == LIVE and not references(state, slot) and not table.flags[slot] & PINNED


def disturb(state: State, slot: int) -> None:
    """What is known of the set being proposed no longer holds, if this is one of its members."""
    if state.proposal is not None and state.resources.candidate[slot] == state.proposal.number:
        state.proposal.broken = True


def unlist(state: State, slot: int) -> None:
    which = state.resources.list[slot]
    if which == SUSPECTS:
        take_out(state.resources, state.suspects, slot)
    elif which == UNREFERENCED:
        take_out(state.resources, state.unreferenced, slot)


def look(state: State, slot: int) -> None:
    """Files a LIVE resource that lost some support."""
    table = state.resources
    if not is_usable(state, slot):
        return
    support = kept_by(state, slot)
    wanted = NO_LIST if support else SUSPECTS if table.in_count[slot] else UNREFERENCED
    table.touch(slot)
    if wanted == SUSPECTS:
        table.suspected[slot] = state.revision
    if support == "buffer":
        table.expiry_ms[slot] = table.hold_ms[slot]
        state.resource_timers.schedule(slot, table.hold_ms[slot])
    if table.list[slot] != wanted:
        unlist(state, slot)
        if wanted != NO_LIST:
            push(table, state.suspects if wanted == SUSPECTS else state.unreferenced, wanted, slot)


def begin_buffer(state: State, slot: int) -> None:
    """A lease on it ended without its holder's doing, who may not know yet."""
    table = state.resources
    table.touch(slot)
    table.hold_ms[slot] = max(table.hold_ms[slot], state.now_ms + table.buffer_ms[slot])


def lost(state: State, slot: int, *, expired: bool = False) -> None:
    """One reference fewer, already taken off the counts. After an expiry the safety buffer begins."""
    state.orphans += is_orphan(state, slot)
    if not is_usable(state, slot):
        return
    disturb(state, slot)
    if expired:
        begin_buffer(state, slot)
    look(state, slot)


def gained(state: State, slot: int) -> None:
    """One reference more, already on the counts. An edge may come from garbage, so it is no reason to look away."""
    disturb(state, slot)
    table = state.resources
    if references(state, slot) == 1 and not table.flags[slot] & PINNED:
        state.orphans -= 1
    if table.flags[slot] & ORPHANED or table.list[slot] != NO_LIST:
        table.touch(slot)
        table.flags[slot] &= ~ORPHANED & 0xFF
        look(state, slot)


# --- leases as references -------------------------------------------------------------------------------------------


def hold_by_lease(state: State, name: int, lease: int) -> None:
    """The lease joins the holders of the resource of this name, registered or not."""
    names = state.names
    names.touch(name)
    if first := names.next[name]:
        state.holders.put_before(first - 1, lease)
        state.pairs.insert(state.pair_of(first - 1), first - 1)
    names.next[name] = lease + 1
    if names.registered[name]:
        gained(state, state.resource_of(name))


def hold_by_leases(state: State, names: Slots, leases: Slots) -> None:
    """`hold_by_lease` for many, each name once."""
    firsts = state.names.column("next")[names].astype(np.int64) - 1
    held = firsts >= 0
    state.holders.put_all_before(firsts[held], leases[held])
    state.pairs.insert_many(state.pairs_of(firsts[held]), firsts[held])
    state.names.touch_many(names)
    state.names.column("next")[names] = leases + 1
    for name in names[state.names.column("registered")[names] != 0].tolist():
        gained(state, state.resource_of(name))


def let_go(state: State, name: int, lease: int, *, expired: bool) -> None:
    names = state.names
    before, after = state.holders.take_out(lease)
    if before:
        state.pairs.remove(state.pair_of(lease), lease)
    else:
        names.touch(name)
        names.next[name] = after
        if after:
            state.pairs.remove(state.pair_of(after - 1), after - 1)
    if names.registered[name]:
        lost(state, state.resource_of(name), expired=expired)


def deadline_of(state: State, name: int) -> int:
    """When the resource of this name ends, whoever holds it."""
    if not state.names.registered[name]:
        return NEVER_MS
    deadline_ms: int = state.resources.deadline_ms[state.resource_of(name)]
    return deadline_ms


def deadlines_of(state: State, names: Slots) -> npt.NDArray[np.int64]:
    deadlines_ms = np.full(len(names), NEVER_MS, dtype=np.int64)
    for at in np.flatnonzero(state.names.column("registered")[names]).tolist():
        deadlines_ms[at] = deadline_of(state, int(names[at]))
    return deadlines_ms


# --- registering ----------------------------------------------------------------------------------------------------


def put(state: State, namespace: Namespace, command: PutResources) -> Result:
    denied = _may_put(state, namespace, command)
    if denied is not None:
        return denied
    names, created, slots = state.names, 0, []
    provider = names.intern(PROVIDER, namespace.number, command.provider)
    kind = names.intern(KIND, namespace.number, command.kind)
    for resource_id in command.resource_ids:
        slot = find(state, namespace, resource_id)
        if slot < 0:
            slot = _register(state, namespace, resource_id, provider)
            created += 1
        _describe(state, slot, kind, command)
        slots.append(slot)
    names.drop(provider)
    names.drop(kind)
    numbers = np.array([state.resource_id(slot) for slot in slots], dtype="<u8").tobytes()
    return ResourcesPut(numbers, created)


def _may_put(state: State, namespace: Namespace, command: PutResources) -> Denied | None:
    new = 0
    for resource_id in dict.fromkeys(command.resource_ids):
        slot = find(state, namespace, resource_id)
        if slot < 0:
            new += 1
            denied = tombstones.refused_id(state, namespace, resource_id)
            if denied is not None:
                return denied
        elif not takes_references(state, slot):
            return reclaiming(resource_id)
        elif state.names.text(state.resources.provider[slot]) != command.provider:
            message = f"{resource_id} is registered by another provider; it must be reclaimed or deleted first"
            return Denied("provider_mismatch", message, {"field": "provider", "resource_id": resource_id})
    kind_is_new = state.names.find(KIND, namespace.number, command.kind) < 0
    if kind_is_new and state.names.kinds_in[namespace.number] >= MAX_KINDS:
        return over_quota(namespace.name, "kinds", MAX_KINDS)
    denied = namespace.over(RESOURCES, new)
    if denied is None and not state.resources.room(new):
        denied = Denied("capacity_exceeded", f"the cluster holds at most {state.resources.max_rows} resources")
    return denied or _over_names(state, namespace, command)


def _over_names(state: State, namespace: Namespace, command: PutResources) -> Denied | None:
    limit = namespace.quotas.name_bytes
    wanted = {(RESOURCE, text): None for text in command.resource_ids}
    wanted |= {(PROVIDER, command.provider): None, (KIND, command.kind): None}
    in_use = state.names.bytes_in[namespace.number]
    if in_use + sum(4 * len(text) for _, text in wanted) <= limit:
        return None
    new = sum(len(text.encode()) for kind, text in wanted if state.names.find(kind, namespace.number, text) < 0)
    return None if not new or in_use + new <= limit else over_quota(namespace.name, "name_bytes", limit)


def _register(state: State, namespace: Namespace, resource_id: str, provider: int) -> int:
    """A newborn: nobody refers to it yet, so `_describe` gives it its safety buffer to be referred to."""
    table, names = state.resources, state.names
    name = names.intern(RESOURCE, namespace.number, resource_id)
    slot = table.allocate()
    table.touch(slot)
    table.generation[slot] = table.generation[slot] or state.first_generation
    table.name[slot], table.provider[slot], table.kind[slot] = name, provider, provider
    names.refer(provider)
    names.refer(provider)
    table.deadline_ms[slot] = table.expiry_ms[slot] = NEVER_MS
    table.since_ms[slot] = state.now_ms
    table.on_lost[slot] = CASCADE
    table.state[slot] = LIVE
    names.touch(name)
    names.registered[name] = 1
    state.resource_index.insert(state.resource_hash(slot), slot)
    namespace.used[RESOURCES] += 1
    if not names.active[name]:
        state.orphans += 1
        table.hold_ms[slot] = -1
    owner = names.text(provider)
    state.emit("resource_registered", namespace.number, resource_id, owner, state.resource_id(slot))
    return slot


def _describe(state: State, slot: int, kind: int, command: PutResources) -> None:
    table, names = state.resources, state.names
    table.touch(slot)
    names.refer(kind)
    names.drop(table.kind[slot])
    table.kind[slot] = kind
    table.buffer_ms[slot] = command.safety_buffer_ms
    if table.hold_ms[slot] < 0:
        table.hold_ms[slot] = state.now_ms + command.safety_buffer_ms
    if command.max_lifetime_ms is not None:
        table.deadline_ms[slot] = min(table.deadline_ms[slot], state.now_ms + command.max_lifetime_ms)
        state.resource_timers.schedule(slot, table.deadline_ms[slot])
    before, was_orphan = (table.flags[slot], table.on_lost[slot]), is_orphan(state, slot)
    table.flags[slot] = table.flags[slot] & ORPHANED | (PINNED if command.pinned else 0)
    table.on_lost[slot] = POLICIES[command.on_lost]
    state.orphans += is_orphan(state, slot) - was_orphan
    if before != (table.flags[slot], table.on_lost[slot]):
        disturb(state, slot)
    look(state, slot)


def forget(state: State, slot: int) -> None:
    """Reclaimed: the id may be registered anew, unless copies are left somewhere."""
    tombstones.leave(state, slot)
    table, names = state.resources, state.names
    name = table.name[slot]
    namespace = state.namespace_of(name)
    namespace.used[RESOURCES] -= 1
    state.resource_index.remove(state.resource_hash(slot), slot)
    names.touch(name)
    names.registered[name] = 0
    if table.worker[slot]:
        names.drop(table.worker[slot] - 1)
    for held in (table.provider[slot], table.kind[slot], name):
        names.drop(held)
    if state.level >= FORMERS:
        state.formers.leave(slot, namespace.number, table.generation[slot])
    table.touch(slot)
    table.generation[slot] = state.next_generation(table, slot)
    table.release(slot)
    state.reasons.pop(slot, None)


def begin_dying(state: State, slot: int) -> None:
    """LIVE → DYING: from now on it takes no reference."""
    table = state.resources
    disturb(state, slot)
    unlist(state, slot)
    state.orphans -= is_orphan(state, slot)
    table.touch(slot)
    table.state[slot] = DYING
    table.since_ms[slot] = state.now_ms
    table.expiry_ms[slot] = NEVER_MS
    state.dying[slot] = None
