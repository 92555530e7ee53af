"""Holders of copies: who they are, what they have, how far they are. Who is not known here is fenced.

Nobody remembers holders that were removed. A removed holder has a token that is not known any more, and that is its
fence: it can neither register copies nor acknowledge. It says what it has, page by page, and is told of each copy
whether to keep it. From its first page on tombstones wait for it, or what dies between two pages would be lost on it;
until its last page it may not serve.

A watermark is always below the revision of the entry that sets it: nobody has seen what an entry does before it is
applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from coordinator.machine import resources, tombstones
from coordinator.machine.copies import EMPTY_SKETCH, Holder
from coordinator.machine.leases import over_names
from coordinator.machine.limits import MAX_HOLDERS, MAX_TOMBSTONES
from coordinator.machine.names import CLIENT
from coordinator.machine.namespaces import HOLDERS, TOMBSTONES, Namespace
from coordinator.machine.results import Denied, Result
from coordinator.machine.sketch import added
from coordinator.machine.state import ACTIVE, State
from coordinator.machine.tombstonecommands import AckTombstones, RegisterCopy, RemoveHolder, VerifyCopies
from coordinator.machine.tombstoneresults import CopiesVerified, CopyRegistered, HolderRemoved, TombstonesAcked


def find(state: State, namespace: Namespace, holder_id: str) -> int:
    """The name of a holder that is known and whose session, if it has one, has not ended; or -1."""
    name = state.names.find(CLIENT, namespace.number, holder_id)
    holder = state.copies.holders.get(name)
    return name if holder is not None and _in_session(state, holder) else -1


def _in_session(state: State, holder: Holder) -> bool:
    """The clock decides, whether or not a sweep has reached the session."""
    slot, table = holder.session - 1, state.sessions
    return not holder.session or (table.state[slot] == ACTIVE and table.expiry_ms[slot] > state.now_ms)


# --- denials --------------------------------------------------------------------------------------------------------


def _fenced(holder_id: str) -> Denied:
    message = (
        f"{holder_id} is not a holder under this token: it was removed, or its name is another's by now. "
        f"Serve no copy, and POST /holders/{holder_id}/verify from the first page, without a token"
    )
    return Denied("holder_fenced", message, {"holder_id": holder_id})


def _known(holder_id: str) -> Denied:
    message = (
        f"{holder_id} is a holder already: show its holder_token, take another name, or have it removed "
        f"(DELETE /holders/{holder_id}) if it is gone for good"
    )
    return Denied("holder_known", message, {"holder_id": holder_id})


def _verifying(holder_id: str) -> Denied:
    message = (
        f"{holder_id} has not said yet which copies it has; send the remaining pages to /holders/{holder_id}/verify"
    )
    return Denied("holder_verifying", message, {"holder_id": holder_id})


def _answering(state: State, name: int, holder_id: str, token: int | None) -> Denied | None:
    """The denial, unless this is a holder in good standing who shows its token."""
    if name < 0:
        return _fenced(holder_id)
    holder = state.copies.holders[name]
    if token is None:
        return _known(holder_id)
    if holder.token != token:
        return _fenced(holder_id)
    return None if holder.verified else _verifying(holder_id)


def _live_session(state: State, namespace: Namespace, session_id: int | None) -> int | Denied:
    """The slot plus one of a session that is alive; 0 without one."""
    if session_id is None:
        return 0
    table = state.sessions
    slot = state.slot_of(table, session_id)
    if slot < 0 or state.namespace_of(table.owner[slot]) is not namespace:
        return Denied("unknown_session", "there is no such session; create one", {"field": "session_id"})
    if table.state[slot] != ACTIVE or table.expiry_ms[slot] <= state.now_ms:
        return Denied("session_expired", "the session has ended; create a new one", {"field": "session_id"})
    return slot + 1


def _over(state: State, namespace: Namespace, holder_id: str, *, holders: int, held: int) -> Denied | None:
    """The denial, if so many more were too many. A resource with copies has the place of its tombstone reserved, so
    there is always room for one when it dies."""
    denied = namespace.over(HOLDERS, holders) or namespace.over(TOMBSTONES, held)
    if denied is None and holders:
        denied = over_names(state, namespace, CLIENT, (), holder_id)
    if denied is not None:
        return denied
    copies = state.copies
    if holders and len(copies.holders) + holders > MAX_HOLDERS:
        return Denied("capacity_exceeded", f"the cluster knows at most {MAX_HOLDERS} holders")
    if held and len(copies.held) + len(copies.tombstones) + held > MAX_TOMBSTONES:
        message = f"the cluster keeps at most {MAX_TOMBSTONES} tombstones and resources that have copies"
        return Denied("capacity_exceeded", message)
    return None


# --- coming and going -----------------------------------------------------------------------------------------------


def _join(state: State, namespace: Namespace, holder_id: str, session: int, *, verified: bool) -> int:
    """A holder that was not known, or one whose place is taken over. It begins at what was applied before."""
    found = state.names.find(CLIENT, namespace.number, holder_id)
    before = state.copies.holders.get(found)
    if before is not None:
        remove(state, found, "replaced" if _in_session(state, before) else "session")
    name = state.names.intern(CLIENT, namespace.number, holder_id)
    holder = Holder(state.next_token(), state.revision - 1, state.now_ms, session, verified)
    state.copies.put_holder(name, namespace.number, holder)
    namespace.used[HOLDERS] += 1
    if verified:
        state.emit("holder_joined", namespace.number, holder_id, holder_id)
    return name


def remove(state: State, name: int, why: str) -> None:
    """Nothing waits for it any more. `why` is told by the event."""
    namespace = state.namespace_of(name)
    state.copies.drop_holder(name, namespace.number)
    namespace.used[HOLDERS] -= 1
    state.emit("holder_removed", namespace.number, state.names.text(name), why)
    state.names.drop(name)


def fence_all(state: State) -> None:
    """After a restore from a backup: nobody knows what the holders did since."""
    for name in sorted(state.copies.holders):
        remove(state, name, "restored")


def _hold(state: State, name: int, slots: Iterable[int]) -> None:
    """The holder has copies of the resources in these slots."""
    copies, raw, namespace = state.copies, state.names.raw(name), state.namespace_of(name)
    holder = copies.holders[name]
    mine = holder.copies
    for slot in slots:
        if slot not in copies.held:
            namespace.used[TOMBSTONES] += 1
        copies.held[slot] = added(copies.held.get(slot, EMPTY_SKETCH), raw)
        mine = added(mine, state.resource_id(slot).to_bytes(8, "big"))
    if mine != holder.copies:
        copies.holders[name] = replace(holder, copies=mine)


# --- commands -------------------------------------------------------------------------------------------------------


def register(state: State, namespace: Namespace, command: RegisterCopy) -> Result:
    slot = resources.find(state, namespace, command.resource_id)
    if slot < 0:
        message = f"{command.resource_id} is not registered; its provider registers it first"
        unknown = Denied("unknown_resource", message, {"field": "resource_id"})
        return tombstones.refused_id(state, namespace, command.resource_id) or unknown
    if not resources.takes_references(state, slot):
        return resources.reclaiming(command.resource_id)
    name = find(state, namespace, command.holder_id)
    joins = name < 0 and command.holder_token is None
    denied = None if joins else _answering(state, name, command.holder_id, command.holder_token)
    if denied is None:
        held = int(slot not in state.copies.held)
        denied = _over(state, namespace, command.holder_id, holders=int(joins), held=held)
    session = denied or _live_session(state, namespace, command.session_id)
    if isinstance(session, Denied):
        return session
    if joins:
        name = _join(state, namespace, command.holder_id, session, verified=True)
    elif session:
        _move(state, namespace, name, session)
    _hold(state, name, (slot,))
    holder = state.copies.holders[name]
    return CopyRegistered(holder.token, holder.watermark, state.resource_id(slot), joins)


def _move(state: State, namespace: Namespace, name: int, session: int) -> None:
    """To another session: its process was started anew."""
    holder = state.copies.holders[name]
    if holder.session != session:
        state.copies.put_holder(name, namespace.number, replace(holder, session=session))


def verify(state: State, namespace: Namespace, command: VerifyCopies) -> Result:
    """A holder in good standing may ask as well: then nothing changes for it but that it has these copies."""
    if len(command.incarnations) != 8 * len(command.resource_ids):
        return Denied("malformed", "incarnations must be as many as resource_ids", {"field": "incarnations"})
    name = find(state, namespace, command.holder_id)
    starts = command.holder_token is None and (name < 0 or not state.copies.holders[name].verified)
    denied = None if starts else _answering(state, name, command.holder_id, command.holder_token)
    if denied is not None and denied.code != "holder_verifying":
        return denied
    incarnations = np.frombuffer(command.incarnations, "<u8").tolist()
    slots = [
        _alive(state, namespace, resource_id, incarnation)
        for resource_id, incarnation in zip(command.resource_ids, incarnations, strict=True)
    ]
    held = len({slot for slot in slots if slot >= 0 and slot not in state.copies.held})
    denied = _over(state, namespace, command.holder_id, holders=int(starts and name < 0), held=held)
    session = denied or _live_session(state, namespace, command.session_id)
    if isinstance(session, Denied):
        return session
    if starts:
        name = _join(state, namespace, command.holder_id, session, verified=False)
    elif session:
        _move(state, namespace, name, session)
    _hold(state, name, (slot for slot in slots if slot >= 0))
    holder = state.copies.holders[name]
    if command.last and not holder.verified:
        holder = state.copies.holders[name] = replace(holder, verified=True)
        state.emit("holder_verified", namespace.number, command.holder_id, command.holder_id)
    return CopiesVerified(holder.token, holder.watermark, bytes(slot >= 0 for slot in slots), holder.verified)


def _alive(state: State, namespace: Namespace, resource_id: str, incarnation: int) -> int:
    """The slot of the resource if this very life of it goes on, else -1."""
    slot = resources.find(state, namespace, resource_id)
    if slot < 0 or state.resource_id(slot) != incarnation or not resources.takes_references(state, slot):
        return -1
    return slot


def ack(state: State, namespace: Namespace, command: AckTombstones) -> Result:
    name = find(state, namespace, command.holder_id)
    denied = _answering(state, name, command.holder_id, command.holder_token)
    if denied is not None:
        return denied
    if command.revision >= state.revision:
        message = f"revision {command.revision} has not come yet: acknowledge what GET /tombstones says in complete_to"
        return Denied("revision_ahead", message, {"field": "revision", "revision": state.revision - 1})
    holder = state.copies.holders[name]
    if command.revision <= holder.watermark:
        return TombstonesAcked(holder.watermark, advanced=False)
    state.copies.put_holder(name, namespace.number, replace(holder, watermark=command.revision))
    return TombstonesAcked(command.revision, advanced=True)


def dismiss(state: State, namespace: Namespace, command: RemoveHolder) -> Result:
    name = state.names.find(CLIENT, namespace.number, command.holder_id)
    holder = state.copies.holders.get(name)
    if holder is None:
        return Denied("unknown_holder", f"there is no holder {command.holder_id}", {"field": "holder_id"})
    if command.holder_token not in (None, holder.token):
        return _fenced(command.holder_id)
    remove(state, name, "administrator" if command.holder_token is None else "left")
    return HolderRemoved(holder.watermark)
