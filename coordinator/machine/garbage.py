"""From garbage to clean-up: what nothing refers to at once, cycles as sets that the collector proposes.

The collector works outside the log, on a graph that changes under it, so the machine believes nothing: it counts again,
from the members' own edges, that no reference to a member comes from elsewhere, and takes the set only if no member
changed while its parts came in. What was taken is worked off a bounded number at a time; it is out of use at once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice

import numpy as np

from coordinator.machine import cutting, leases, reclaims, resources
from coordinator.machine.budget import Budget
from coordinator.machine.commands import DeleteResource, ProposeSet, SettleSuspects, SuspectResources
from coordinator.machine.graph import CLAIMED, DELAYED, LIVE, NO_LIST, ORPHAN, SUSPECTS, Condemned, Proposal
from coordinator.machine.levels import CHARGED_CUTS, LITTLE_GARBAGE
from coordinator.machine.limits import MAX_EDGES_COUNTED, MAX_SET_NUMBER, NEVER_MS
from coordinator.machine.namespaces import Namespace
from coordinator.machine.results import Denied, ResourceDeleted, Result, SetTaken, SuspectsSettled
from coordinator.machine.state import State

# --- sets -----------------------------------------------------------------------------------------------------------


def next_set(state: State) -> int:
    return state.last_set % MAX_SET_NUMBER + 1


def propose(state: State, _: Namespace, command: ProposeSet) -> Result:
    proposal = state.proposal
    if command.part == 0 and command.number == next_set(state):
        state.last_set = command.number
        state.proposal = proposal = Proposal(command.number, 0, array("I"))
    if proposal is None or proposal.number != command.number or proposal.parts != command.part:
        return _refused("another set was proposed meanwhile")
    proposal.parts += 1
    for number in np.frombuffer(command.members, dtype="<u8").tolist():
        slot = state.slot_of(state.resources, number)
        if slot < 0 or not _may_join(state, slot, proposal.number):
            proposal.broken = True
            break
        _join(state, slot, proposal)
    counted = proposal.broken or _count(state, proposal, MAX_EDGES_COUNTED)
    if proposal.broken or (command.last and counted and proposal.satisfied < len(proposal.members)):
        state.proposal = None
        return _refused("a member changed, is kept or gone, or is referred to from elsewhere")
    if not command.last or not counted:
        return SetTaken(len(proposal.members), condemned=False)
    state.proposal = None
    state.condemned[proposal.number] = Condemned(proposal.members)
    if state.level >= LITTLE_GARBAGE:
        drain(state, Budget())
    return SetTaken(len(proposal.members), condemned=True)


def _refused(why: str) -> Denied:
    return Denied("set_refused", f"the set was not taken: {why}")


def _may_join(state: State, slot: int, number: int) -> bool:
    usable = resources.is_usable(state, slot) and state.resources.candidate[slot] != number
    return usable and resources.kept_by(state, slot) is None


def _join(state: State, slot: int, proposal: Proposal) -> None:
    rows, number = state.resources, proposal.number
    rows.touch(slot)
    rows.candidate[slot] = number
    proposal.members.append(slot)
    if rows.counted_for[slot] != number:
        rows.counted_for[slot], rows.counted[slot] = number, 0
    if rows.counted[slot] == rows.in_count[slot]:
        proposal.satisfied += 1


def _count(state: State, proposal: Proposal, budget: int) -> bool:
    """Counts the members' edges towards their targets: who has all its references from members is satisfied.

    False: there are more than `budget`, and the rest is for the next part. A member whose edges change breaks the set,
    so the place to go on from stays what it was.
    """
    rows, table, members = state.resources, state.edges, proposal.members
    while proposal.counted < len(members):
        place = proposal.next_edge or rows.first_out[members[proposal.counted]]
        while place and budget > 0:
            budget -= 1
            _count_edge(state, place - 1, proposal)
            place = table.next[place - 1]
        proposal.next_edge = place
        if place:
            return False
        proposal.counted += 1
    return True


def _count_edge(state: State, edge: int, proposal: Proposal) -> None:
    """An edge that says that its target stays does not count: its target may not go with the source."""
    rows, number = state.resources, proposal.number
    if state.edges.state[edge] != ORPHAN:
        target = state.edges.target[edge]
        rows.touch(target)
        if rows.counted_for[target] != number:
            rows.counted_for[target], rows.counted[target] = number, 0
        rows.counted[target] += 1
        if rows.candidate[target] == number and rows.counted[target] == rows.in_count[target]:
            proposal.satisfied += 1


def settle(state: State, _: Namespace, command: SettleSuspects) -> Result:
    table, settled = state.resources, 0
    for number in np.frombuffer(command.resource_ids, dtype="<u8").tolist():
        slot = state.slot_of(table, number)
        if slot >= 0 and table.list[slot] == SUSPECTS and table.suspected[slot] <= command.as_of:
            resources.unlist(state, slot)
            settled += 1
    return SuspectsSettled(settled)


def suspect(state: State, _: Namespace, command: SuspectResources) -> Result:
    listed = 0
    for number in np.frombuffer(command.resource_ids, dtype="<u8").tolist():
        slot = state.slot_of(state.resources, number)
        if slot >= 0 and state.resources.list[slot] == NO_LIST:
            resources.look(state, slot)
            listed += state.resources.list[slot] != NO_LIST
    return SuspectsSettled(listed)


# --- cutting --------------------------------------------------------------------------------------------------------


def delete(state: State, namespace: Namespace, command: DeleteResource) -> Result:
    slot = resources.find(state, namespace, command.resource_id)
    if slot < 0:
        return Denied("unknown_resource", f"{command.resource_id} is not registered", {"field": "resource_id"})
    if not resources.is_usable(state, slot):
        return resources.reclaiming(command.resource_id)
    held = state.names.active[state.resources.name[slot]]
    if (held or state.resources.in_count[slot]) and not command.force:
        edges_in = state.resources.in_count[slot]
        message = f"{command.resource_id} has {held} leases and {edges_in} edges to it; end them, or delete it by force"
        return Denied("resource_in_use", message, {"leases": held, "edges": edges_in})
    number = state.resource_id(slot)
    if held:
        resources.begin_buffer(state, slot)
    resources.begin_dying(state, slot)
    return ResourceDeleted(number)


def drain(state: State, budget: Budget) -> None:
    """Works off what is garbage, within `budget`: half-done ones first, then sets, then single ones."""
    reclaims.enter_many(state, list(_worked_off(state, budget)))


def _worked_off(state: State, budget: Budget) -> Iterator[int]:
    """Resources whose last references were cut, one after the other."""
    for slot in list(islice(state.dying, max(0, budget.expiries))):
        if budget.expiries <= 0 or not _cut(state, slot, budget):
            return
        budget.expiries -= 1
        yield slot
    for number, condemned in list(state.condemned.items()) if budget.sets else ():
        while condemned.position < len(condemned.members):
            yield from cutting.cut_next(state, condemned, budget)
            if budget.expiries <= 0:
                return
            if condemned.position == len(condemned.members):
                break
            budget.expiries -= 1
            slot = condemned.members[condemned.position]
            condemned.position += 1
            resources.begin_dying(state, slot)
            if not _cut(state, slot, budget):
                return
            yield slot
        del state.condemned[number]
    while state.unreferenced.first and budget.expiries > 0:
        budget.expiries -= 1
        slot = state.unreferenced.first - 1
        resources.begin_dying(state, slot)
        if not _cut(state, slot, budget):
            return
        yield slot


def backlog(state: State) -> int:
    """How many resources are known to be garbage and not worked off."""
    condemned = sum(len(each.members) - each.position for each in state.condemned.values())
    return condemned + len(state.dying) + state.unreferenced.count


def _cut(state: State, slot: int, budget: Budget) -> bool:
    """Cuts what is left of its references; then it is the workers'. False: the budget did not suffice."""
    rows = state.resources
    while holder := state.names.next[rows.name[slot]]:
        if budget.expiries <= 0:
            return False
        budget.expiries -= 1
        leases.lapse(state, holder - 1)
    while first := rows.first_in[slot] or rows.first_out[slot]:
        if budget.expiries <= 0:
            return False
        budget.expiries -= 1
        cutting.remove(state, first - 1)
    del state.dying[slot]
    return True


# --- time -----------------------------------------------------------------------------------------------------------


def keep_time(state: State, budget: Budget) -> None:
    """Looks at resources whose moment may have come: end of life, of a hold, of a delay, of a claim."""
    table = state.resources
    while len(slots := budget.take(state, state.resource_timers)):
        for slot in slots.tolist():
            before = budget.expiries
            was_due = _moment(state, slot, budget)
            budget.expiries = (budget.expiries if state.level >= CHARGED_CUTS else before) - was_due
            if table.state[slot] and not resources.is_condemned(state, slot):
                deadline_ms = table.deadline_ms[slot] if table.state[slot] == LIVE else NEVER_MS
                state.resource_timers.schedule(slot, min(table.expiry_ms[slot], deadline_ms))


def _moment(state: State, slot: int, budget: Budget) -> bool:
    """What is due of one resource; whether anything was."""
    table = state.resources
    status = table.state[slot]
    if status == LIVE and table.deadline_ms[slot] <= state.now_ms and resources.is_usable(state, slot):
        resources.begin_buffer(state, slot)
        resources.begin_dying(state, slot)
        if _cut(state, slot, budget):
            reclaims.enter(state, slot)
        return True
    if not status or table.expiry_ms[slot] > state.now_ms:
        return False
    table.touch(slot)
    table.expiry_ms[slot] = NEVER_MS
    if status == LIVE:
        resources.look(state, slot)
    elif status == DELAYED:
        reclaims.ready(state, slot)
    elif status == CLAIMED:
        reclaims.abandoned(state, slot)
    return True
