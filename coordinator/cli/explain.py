"""`holdfast explain ID`: why a resource is there, drawn as the path that keeps it; or what would go with something."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coordinator.cli.arguments import Commands
from coordinator.cli.asking import add_asking, at, given
from coordinator.cli.output import Shown, lasting, plain

if TYPE_CHECKING:
    from coordinator.client import Client

CHANGES = ("revoke:session/", "revoke:lease/", "revoke:client/", "delete:resource/", "delete:edge/")
_ROOTS = {
    "pinned": "pinned: it stays until it is deleted or its lifetime is over",
    "orphan": "an orphan: its policy has it stay when nothing refers to it",
    "blocked": "blocked: something it refers to may not be lost",
}


async def _explain(client: Client, options: argparse.Namespace) -> Shown:
    query = given(what_if=options.what_if)
    answer = await client.call("GET", at("resources", options.id) + "/explain", query=query)
    return Shown(answer, drawn(answer) if options.what_if is None else lost(answer))


def drawn(answer: dict[str, Any]) -> str:
    name = plain(answer["resource_id"])
    if answer["undecided"]:
        return f"{name}: too much refers to it to say in time whether it is alive; try again"
    if not answer["alive"]:
        return f"{name} is not kept by anything ({answer['state']})\n\n{_waiting(answer['waiting_for'])}"
    root = answer["root"]
    lines = [f"{name} is alive ({answer['state']}, revision {answer['revision']})", ""]
    if root is not None:
        lines += path([_root(root), *answer["path"]])
    if answer["waiting_for"] is not None:
        lines += ["", _waiting(answer["waiting_for"])]
    return "\n".join(lines)


def path(steps: Sequence[str]) -> list[str]:
    """Each step one further in, below the one that refers to it."""
    return [plain(step) if depth == 0 else f"{'   ' * (depth - 1)}└─ {plain(step)}" for depth, step in enumerate(steps)]


def _root(root: dict[str, Any]) -> str:
    if root["kind"] == "lease":
        session = "" if root["session_id"] is None else f" (session {root['session_id']})"
        return f"lease {root['lease_id']} of {root['client_id']}{session}, {lasting(root['ttl_ms'])} left"
    if root["kind"] == "buffer":
        return f"its safety buffer, {lasting(root['hold_left_ms'])} left"
    return _ROOTS[root["kind"]]


def _waiting(waiting: dict[str, Any] | None) -> str:
    if waiting is None:
        return "it waits for nothing"
    if waiting["kind"] == "safety_buffer":
        return f"it waits for the end of its safety buffer, {lasting(waiting['left_ms'])} from now"
    if waiting["kind"] == "collection":
        return "it waits for the collector"
    reclaim = waiting["reclaim"] or {}
    lines = [f"it waits for a worker: reclaim {reclaim.get('reclaim_id')}, {reclaim.get('state')}"]
    if reclaim.get("worker"):
        lines.append(f"  {plain(reclaim['worker'])} has it for {lasting(reclaim['claim_left_ms'])}")
    if reclaim.get("last_error"):
        lines.append(f"  attempt {reclaim['attempt']} failed: {plain(reclaim['last_error'])}")
    if waiting["lane_closed_for_ms"]:
        lines.append(f"  its kind failed often: tried again in {lasting(waiting['lane_closed_for_ms'])}")
    return "\n".join(lines)


def lost(answer: dict[str, Any]) -> str:
    if answer["undecided"]:
        return "too much hangs on it to say in time what would be reclaimed"
    fate = "would be reclaimed" if answer["reclaims_this"] else "would stay"
    lines = [f"{plain(answer['resource_id'])} {fate}, after {plain(answer['what_if'])}", ""]
    lines.append(
        f"{answer['total']} would be reclaimed once their buffers are over:"
        if answer["total"]
        else "nothing would be reclaimed"
    )
    lines += [f"  {plain(each)}" for each in answer["would_reclaim"]]
    if answer["truncated"]:
        lines.append(f"  … and {answer['total'] - len(answer['would_reclaim'])} more")
    if answer["changed_meanwhile"]:
        lines += ["", "something was written meanwhile: ask again to be sure"]
    return "\n".join(lines)


def _change(text: str) -> str:
    if not text.startswith(CHANGES):
        raise argparse.ArgumentTypeError(f"{text!r} is no change: it begins with one of {', '.join(CHANGES)}")
    return text


def add(commands: Commands) -> None:
    added = add_asking(commands, "explain", "why a resource is alive, or what it waits for", _explain)
    added.add_argument("id", metavar="ID")
    added.add_argument(
        "--what-if", metavar="CHANGE", type=_change,
        help="what would be reclaimed after revoke:session/ID, revoke:lease/ID, revoke:client/ID, delete:resource/ID "
        "or delete:edge/SOURCE/TARGET",
    )  # fmt: skip
