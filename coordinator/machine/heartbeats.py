"""Packed heartbeats: thousands of leases renewed in one command without a Python loop over them (DESIGN §6)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coordinator.machine.columns import FREE, Slots
from coordinator.machine.commands import Heartbeat
from coordinator.machine.leaserows import (
    BOUNDED,
    FLAGS_SHIFT,
    HELD_WORD,
    OWNED,
    ROW_WORDS,
    STANDING_WORD,
    STATE_SHIFT,
)
from coordinator.machine.names import CLIENT
from coordinator.machine.namespaces import Namespace
from coordinator.machine.results import VERDICTS, HeartbeatAnswer, Result
from coordinator.machine.state import ACTIVE, SLOT_MASK, State

UNKNOWN, NOT_OWNER, OUT_OF_TIME, SESSION_OWNED, LIFETIME_REACHED = range(1, len(VERDICTS) + 1)
NOBODY = SLOT_MASK
"""No row has this owner: the number of a client that has nothing."""
IN_WORDS = np.dtype("i8") == np.dtype("<i8")
"""Little-endian: then a row's words are what leaserows says they are."""
STANDING_MASK = 0xFF << STATE_SHIFT | (OWNED | BOUNDED) << FLAGS_SHIFT
PLAIN = ACTIVE << STATE_SHIFT
"""Of STANDING_MASK, what an ACTIVE lease has that no session owns and that may live for ever."""


def heartbeat(state: State, namespace: Namespace, command: Heartbeat) -> Result:
    lease_ids = np.frombuffer(command.lease_ids, dtype="<u8")
    owner = state.names.find(CLIENT, namespace.number, command.client_id)
    if owner < 0 or not state.leases.used:
        owner = NOBODY
    if not state.leases.used:
        return HeartbeatAnswer(0, command.lease_ids, bytes([UNKNOWN]) * len(lease_ids), state.now_ms)
    until_ms = state.now_ms + command.extend_duration_ms
    if IN_WORDS and owner != NOBODY and _all_renewed(state, owner, lease_ids, until_ms):
        return HeartbeatAnswer(len(lease_ids), b"", b"", state.now_ms)
    pairs = lease_ids.view("<u4").reshape(-1, 2)
    slots = pairs[:, 0].astype(np.int64)
    # A slot beyond the table is looked up at its end; the generation there cannot make it right (see below).
    np.minimum(slots, state.leases.used - 1, out=slots)
    table = state.leases
    # Once each: what is looked at of a row is mostly not in any cache, and its fields lie side by side.
    rows = table.rows.take(slots)
    known = (rows["generation"] == pairs[:, 1]) & (slots == pairs[:, 0])
    expiry_ms, flags = rows["expiry_ms"], rows["flags"]
    renewable = rows["owner"] == owner
    renewable &= known
    renewable &= rows["state"] == ACTIVE
    renewable &= expiry_ms > state.now_ms
    if flags.any():
        renewable &= flags & OWNED == 0
        renewable &= table.deadlines_of(slots) >= until_ms
    if renewable.all():
        _extend(state, slots, np.maximum(expiry_ms, until_ms))
        return HeartbeatAnswer(len(slots), b"", b"", state.now_ms)
    _extend(state, slots[renewable], np.maximum(expiry_ms[renewable], until_ms))
    failed = ~renewable
    verdicts = _verdicts(state, namespace, owner, slots[failed], known[failed])
    capped = slots[failed][verdicts == LIFETIME_REACHED]
    _extend(state, capped, table.deadlines_of(capped))
    renewed = len(slots) - len(verdicts)
    return HeartbeatAnswer(renewed, lease_ids[failed].tobytes(), verdicts.tobytes(), state.now_ms)


def _all_renewed(state: State, owner: int, lease_ids: npt.NDArray[np.uint64], until_ms: int) -> bool:
    """Renews all of them if nothing about any needs a second look, which is what nearly always is so; or none."""
    table = state.leases
    slots = lease_ids.view(np.int64) & SLOT_MASK
    if slots.max() >= table.used:
        return False
    places = slots * ROW_WORDS
    # First the row's two ends: they bring in every cache line that it lies on, so that all misses overlap.
    expiry_ms = table.words.take(places)
    standing = table.words[STANDING_WORD:].take(places)
    held = table.words[HELD_WORD:].take(places).view(np.uint64)
    fine = held == (lease_ids >> 32 | owner << 32)
    fine &= standing & STANDING_MASK == PLAIN
    fine &= expiry_ms > state.now_ms
    if not fine.all():
        return False
    table.touch_many(slots)
    table.words[places] = np.maximum(expiry_ms, until_ms)
    return True


def _extend(state: State, slots: Slots, until_ms: npt.NDArray[np.int64]) -> None:
    state.leases.touch_many(slots)
    state.leases.column("expiry_ms")[slots] = until_ms


def _verdicts(
    state: State, namespace: Namespace, owner: int, slots: Slots, known: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint8]:
    """For leases that were not renewed. The first reason that holds, in the order of VERDICTS."""
    rows, sessions = state.leases.rows.take(slots), state.leases.sessions_of(slots)
    owners = rows["owner"].astype(np.int64)
    # A lease of another namespace is not there at all, so that nobody can probe for one.
    here = state.names.column("namespace")[np.minimum(owners, len(state.names.rows) - 1)] == namespace.number
    session_expiry_ms = state.sessions.column("expiry_ms")[np.maximum(sessions - 1, 0)]
    out_of_time = (rows["state"] != ACTIVE) | (rows["expiry_ms"] <= state.now_ms)
    out_of_time |= (sessions != 0) & (session_expiry_ms <= state.now_ms)
    reasons = [~known | (rows["state"] == FREE) | ~here, owners != owner, out_of_time, sessions != 0]
    return np.select(reasons, [UNKNOWN, NOT_OWNER, OUT_OF_TIME, SESSION_OWNED], LIFETIME_REACHED).astype(np.uint8)
