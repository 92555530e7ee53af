"""Many leases in one command: all of them or, over a quota, none; exactly as if each had been acquired alone, in order.

What is alike is done at once: looking up the names, new leases, leases to extend. Only a lease that is past its time
and not swept yet is ended and acquired by itself. A name given twice is one lease: acquiring again in the same entry
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from coordinator.machine import leases, resources
from coordinator.machine.columns import Slots
from coordinator.machine.commands import AcquireLeases
from coordinator.machine.events import Event
from coordinator.machine.names import CLIENT, RESOURCE
from coordinator.machine.namespaces import LEASES, Namespace
from coordinator.machine.results import Denied, LeasesGranted, Result
from coordinator.machine.state import State
from coordinator.machine.values import value

NEW, HELD, LAPSED = range(3)
"""What a client has of a resource before the command: no lease, a live one, one that is over."""


@value(frozen=True, slots=True)
class Wanted:
    """The resources of a command, each once."""

    texts: tuple[str, ...]
    encoded: list[bytes]
    keys: npt.NDArray[np.uint32]
    names: Slots
    """-1 where the name is new."""
    held: Slots
    """The client's lease, or -1."""
    standing: npt.NDArray[np.int8]


def acquire(state: State, namespace: Namespace, command: AcquireLeases) -> Result:
    refused = leases.reserved(state, namespace, command.client_id, command.resource_ids)
    session = refused or leases.owning_session(state, namespace, command.session_id, command.client_id)
    if isinstance(session, Denied):
        return session
    wanted = _look_up(state, namespace, command)
    denied = _refused(state, namespace, command, wanted, session)
    if denied is not None:
        return denied
    owner = state.names.intern(CLIENT, namespace.number, command.client_id)
    slots = wanted.held.copy()
    for standing, start, end in _runs(wanted.standing):
        part = slice(start, end)
        if standing == NEW:
            slots[part] = _create(state, namespace, command, wanted, part, owner, session)
        elif standing == LAPSED:
            for at in range(start, end):
                one = leases.acquire_one(state, namespace, wanted.texts[at], owner, command, session)
                slots[at] = one[0]
        elif not session:
            _extend(state, wanted.held[part], command.lease_duration_ms)
    state.names.drop(owner)
    expires_ms = int(_effective_expiry(state, slots).min())
    if len(wanted.texts) < len(command.resource_ids):
        place = {text: at for at, text in enumerate(wanted.texts)}
        slots = slots[[place[text] for text in command.resource_ids]]
    return LeasesGranted(_lease_ids(state, slots).tobytes(), expires_ms - state.now_ms, expires_ms)


# --- before: who has what, and whether all of it may be granted ----------------------------------------------------


def _look_up(state: State, namespace: Namespace, command: AcquireLeases) -> Wanted:
    texts = tuple(dict.fromkeys(command.resource_ids))
    encoded = [text.encode() for text in texts]
    keys = state.names.keys_of(RESOURCE, namespace.number, encoded)
    names = state.names.find_many(RESOURCE, namespace.number, encoded, keys)
    held = np.full(len(texts), -1, dtype=np.int64)
    owner = state.names.find(CLIENT, namespace.number, command.client_id)
    known = names >= 0
    if owner >= 0 and known.any():
        held[known] = state.find_leases(names[known], owner)
    standing = np.where(held < 0, NEW, HELD).astype(np.int8)
    mine = np.flatnonzero(held >= 0)
    standing[mine[_effective_expiry(state, held[mine]) <= state.now_ms]] = LAPSED
    return Wanted(texts, encoded, keys, names, held, standing)


def _refused(state: State, namespace: Namespace, command: AcquireLeases, wanted: Wanted, session: int) -> Denied | None:
    more = int(np.count_nonzero(wanted.standing != HELD))
    denied = leases.over_leases(state, namespace, more)
    denied = denied or leases.over_names(state, namespace, RESOURCE, wanted.texts, command.client_id)
    denied = denied or _reclaiming(state, wanted)
    if denied is not None:
        return denied
    live = np.flatnonzero(wanted.standing == HELD)
    others = live[state.leases.sessions_of(wanted.held[live]) != session]
    return leases.other_session(command.client_id, wanted.texts[others[0]]) if len(others) else None


def _reclaiming(state: State, wanted: Wanted) -> Denied | None:
    """The denial, if one of them is registered and on its way out, or has left a tombstone."""
    known = wanted.names[wanted.names >= 0]
    if not state.copies.tombstones:
        known = known[state.names.column("registered")[known] != 0]
    return next((denied for name in known.tolist() if (denied := resources.refused(state, name))), None)


def _effective_expiry(state: State, slots: Slots) -> npt.NDArray[np.int64]:
    """See `leases.effective_expiry`."""
    expiry_ms: npt.NDArray[np.int64] = state.leases.column("expiry_ms")[slots]
    sessions = state.leases.sessions_of(slots)
    owned = sessions != 0
    session_ms = state.sessions.column("expiry_ms")[sessions[owned] - 1]
    expiry_ms[owned] = np.minimum(expiry_ms[owned], session_ms)
    return expiry_ms


# --- granting -------------------------------------------------------------------------------------------------------


def _runs(standing: npt.NDArray[np.int8]) -> Iterator[tuple[int, int, int]]:
    """Neighbours of one standing: which, from where, to where."""
    starts = np.flatnonzero(np.diff(standing, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(standing)], strict=True):
        yield int(standing[start]), start, end


def _create(
    state: State, namespace: Namespace, command: AcquireLeases, wanted: Wanted, part: slice, owner: int, session: int
) -> Slots:
    named = wanted.names[part].copy()
    new = named < 0
    encoded = [text for text, is_new in zip(wanted.encoded[part], new.tolist(), strict=True) if is_new]
    named[new] = state.names.add_many(RESOURCE, namespace.number, encoded, wanted.keys[part][new])
    state.names.refer_many(named[~new])
    state.names.refer(owner, len(named))
    slots = leases.create_many(state, named, owner, command.lease_duration_ms, session, command.max_lifetime_ms)
    namespace.used[LEASES] += len(slots)
    numbers, tokens = _lease_ids(state, slots).tolist(), state.leases.column("token")[slots].tolist()
    revision, name, client = state.revision, namespace.name, command.client_id
    state.events += [
        Event(revision, "lease_acquired", name, text, client, number, token)
        for text, number, token in zip(wanted.texts[part], numbers, tokens, strict=True)
    ]
    return slots


def _extend(state: State, slots: Slots, ttl_ms: int) -> None:
    """See `leases.extend`."""
    table = state.leases
    expiry_ms = table.column("expiry_ms")
    table.touch_many(slots)
    expiry_ms[slots] = np.maximum(expiry_ms[slots], np.minimum(state.now_ms + ttl_ms, table.deadlines_of(slots)))


def _lease_ids(state: State, slots: Slots) -> npt.NDArray[np.uint64]:
    generations = state.leases.column("generation")[slots].astype("<u8")
    lease_ids: npt.NDArray[np.uint64] = generations << np.uint64(32) | slots.astype("<u8")
    return lease_ids
