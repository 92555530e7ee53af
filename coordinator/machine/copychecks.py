"""What must be true of holders, copies and tombstones after every command: `invariants` of that part."""

from __future__ import annotations

from collections import Counter

from coordinator.machine.columns import FREE
from coordinator.machine.copies import Copies
from coordinator.machine.faults import require
from coordinator.machine.names import CLIENT, RESOURCE
from coordinator.machine.namespaces import HOLDERS, TOMBSTONES
from coordinator.machine.sketch import DEFAULT_PRECISION, Sketch
from coordinator.machine.state import State


def check(state: State) -> None:
    _check_holders(state)
    _check_tombstones(state)
    _check_held(state)
    _check_derived(state)


def names_held(state: State) -> Counter[int]:
    """How often records of this part refer to each name."""
    return Counter([*state.copies.holders, *state.copies.tombstones])


def count_used(state: State, used: dict[int, list[int]]) -> None:
    """Into `used`, by namespace, what the quotas count."""
    namespace = state.names.namespace
    for name in state.copies.holders:
        used[namespace[name]][HOLDERS] += 1
    for name in state.copies.tombstones:
        used[namespace[name]][TOMBSTONES] += 1
    for slot in state.copies.held:
        used[namespace[state.resources.name[slot]]][TOMBSTONES] += 1


def _check_holders(state: State) -> None:
    tokens = [holder.token for holder in state.copies.holders.values()]
    require(len(set(tokens)) == len(tokens), "two holders have one token")
    for name, holder in state.copies.holders.items():
        require(state.names.state[name] == CLIENT, "a holder's name is no client's")
        require(0 < holder.token <= state.last_token, "a holder's token was not drawn from the counter")
        require(0 <= holder.watermark < state.revision, "a holder has processed what has not come")
        require(Sketch.from_bytes(holder.copies).precision == DEFAULT_PRECISION, "a sketch of another precision")
        if holder.session:
            require(state.sessions.state[holder.session - 1] != FREE, "a holder's session is gone")


def _check_tombstones(state: State) -> None:
    copies, names, serial, revision = state.copies, state.names, 0, 0
    for name, tombstone in copies.tombstones.items():
        require(names.state[name] == RESOURCE, "a tombstone of what is no resource")
        require(not names.registered[name], "a resource came back while its tombstone stands")
        require(not names.active[name] and not names.next[name], "a dead resource is leased")
        require(serial < tombstone.serial <= copies.created, "tombstones are out of order")
        require(revision <= tombstone.revision <= state.revision, "tombstones are not in the order of revisions")
        require(tombstone.since_ms <= state.now_ms, "a tombstone from the future")
        require(Sketch.from_bytes(tombstone.holders).estimate() > 0, "a tombstone of what nobody had a copy of")
        serial, revision = tombstone.serial, tombstone.revision
    require(copies.created - copies.purged == len(copies.tombstones), "a tombstone was lost, or purged twice")


def _check_held(state: State) -> None:
    for slot, sketch in state.copies.held.items():
        require(slot < state.resources.used and state.resources.state[slot] != FREE, "a copy of what is not there")
        require(Sketch.from_bytes(sketch).estimate() > 0, "a resource is held by nobody")


def _check_derived(state: State) -> None:
    """The rows, watermarks and what is due are what the records say."""
    copies, again = state.copies, Copies()
    again.holders, again.tombstones = copies.holders, copies.tombstones
    again.derive(lambda name: int(state.names.namespace[name]))
    require(copies.watermarks == again.watermarks, "the watermarks are not what the holders say")
    require(copies.of_session == again.of_session, "holders are filed under other sessions")
    require(copies.rows.keys() == again.rows.keys(), "a namespace's tombstones are filed elsewhere")
    for number, row in copies.rows.items():
        listed = [column[row.first :] for column in (row.names, row.serials, row.revisions)]
        other = again.rows[number]
        require(listed == [other.names, other.serials, other.revisions], "a row of tombstones is not what they say")
    require(copies.due.keys() == again.due.keys(), "a tombstone that can go is not seen, or one that cannot is")
    require(copies.sketch_bytes == again.sketch_bytes, "the bytes of tombstones are miscounted")
