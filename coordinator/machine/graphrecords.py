"""What a snapshot holds of the reference graph besides its rows: lanes, chains, sets under way, reasons."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from coordinator.machine.chains import Chain
from coordinator.machine.graph import Condemned, Lane, Proposal
from coordinator.machine.state import State


def written(state: State) -> list[list[Any]]:
    proposal = state.proposal
    return [
        [_chain(state.suspects), _chain(state.unreferenced)],
        [
            [
                provider,
                kind,
                _chain(lane.ready),
                _chain(lane.dead),
                lane.delayed,
                lane.claimed,
                lane.failures,
                lane.closed_until_ms,
            ]
            for provider, lanes in sorted(state.lanes.items(), key=itemgetter(0))
            for kind, lane in lanes.items()
        ],
        list(state.dying),
        [] if proposal is None else [_proposal(proposal)],
        [[number, each.members.tobytes(), each.position] for number, each in state.condemned.items()],
        sorted(state.reasons.items()),
    ]


def _chain(chain: Chain) -> tuple[int, int, int]:
    """Not `astuple`, which takes thirty times as long: this is done while everything else waits."""
    return chain.first, chain.last, chain.count


def _proposal(proposal: Proposal) -> list[Any]:
    found = [proposal.satisfied, proposal.broken, proposal.counted, proposal.next_edge]
    return [proposal.number, proposal.parts, proposal.members.tobytes(), *found]


def read(state: State, records: Callable[[], list[Any]]) -> None:
    suspects, unreferenced = records()
    state.suspects, state.unreferenced = Chain(*suspects), Chain(*unreferenced)
    for provider, kind, ready, dead, *rest in records():
        state.lanes.setdefault(provider, {})[kind] = Lane(Chain(*ready), Chain(*dead), *rest)
    state.dying = dict.fromkeys(records())
    for number, parts, members, *rest in records():
        state.proposal = Proposal(number, parts, array("I", members), *rest)
    for number, members, position in records():
        state.condemned[number] = Condemned(array("I", members), position)
    state.reasons = dict(records())
