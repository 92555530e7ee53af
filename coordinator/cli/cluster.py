"""`holdfast status | member | transfer | snapshot`: the cluster itself.

They ask one node, not the SDK: they must work on a cluster that has no leader, and say which node did not answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from coordinator.cli.arguments import Commands, add_noun, add_remote, positive, targets
from coordinator.cli.asking import at
from coordinator.cli.output import Bar, Shown, table
from coordinator.endpoint import Endpoint, EndpointError, NoAnswer, call

MEMBER_TIMEOUT_S = 60
CATCH_UP_S = 300
SNAPSHOT_S = 300
_PATH = "/api/v1/cluster"
_POLL_S = 0.2
_SOON = ("change_pending", "no_leader", "not_leader", "not_ready")
"""Refusals that pass: nothing was done, and it is asked for again."""


def ask(options: argparse.Namespace) -> tuple[Endpoint, dict[str, Any]]:
    """The first node that answers, and what it says of the cluster."""
    failures = []
    for endpoint in targets(options):
        try:
            seen: dict[str, Any] = call(endpoint, "GET", _PATH, None, min(options.timeout, 2.0))
            return endpoint, seen
        except NoAnswer as error:
            failures.append(str(error))
    if not failures:
        raise EndpointError("no endpoint was given; say --endpoints HOST:PORT", code="usage")
    raise NoAnswer(failures[0])


# --- status -----------------------------------------------------------------------------------------------------------


def _status(options: argparse.Namespace) -> int:
    if options.watch is None:
        return show(ask(options)[1]).print(options)
    while True:
        try:
            shown = show(ask(options)[1])
        except NoAnswer as error:
            shown = Shown({"error": {"code": "unavailable", "message": str(error)}}, f"no node answers: {error}")
        if sys.stdout.isatty() and not options.json:
            print("\x1b[H\x1b[2J", end="")
        shown.print(options)
        time.sleep(options.watch)


def show(cluster: dict[str, Any]) -> Shown:
    ahead = max([cluster["revision"], *(member["applied"] or 0 for member in cluster["members"])])
    members = [
        {**member, "lag": None if member["applied"] is None else ahead - member["applied"]}
        for member in cluster["members"]
    ]
    leader = cluster["leader"] or "none"
    head = f"cluster {cluster['cluster_id']}  leader {leader}  term {cluster['term']}  revision {cluster['revision']}"
    head += f"  level {level_text(cluster)}"
    rows = [
        [
            member["id"],
            "unreachable" if member["applied"] is None else member["role"],
            *(member[name] for name in ("term", "applied", "lag", "pid", "http", "peer")),
        ]
        for member in members
    ]
    drawn = table(("id", "role", "term", "applied", "lag", "pid", "http", "peer"), rows)
    return Shown({**cluster, "members": members}, f"{head}\n\n{drawn}")


def level_text(cluster: dict[str, Any]) -> str:
    """The one in force, and who knows more or less of them. A node of the release before levels says nothing of any."""
    level = cluster.get("level", 1)
    others = [
        f"{member['id']} knows {member.get('known_level') or 1}"
        for member in cluster["members"]
        if member["applied"] is not None and (member.get("known_level") or 1) != level
    ]
    return f"{level} ({', '.join(others)})" if others else str(level)


# --- members ----------------------------------------------------------------------------------------------------------


def _member_list(options: argparse.Namespace) -> int:
    return show(ask(options)[1]).print(options)


def _member_add(options: argparse.Namespace) -> int:
    body = {"id": options.id, "peer": options.peer, "http": options.http}
    endpoint, cluster = ask(options)
    if options.if_absent and any(body == {key: member[key] for key in body} for member in cluster["members"]):
        return show(cluster).print(options)
    return show(_change(endpoint, "POST", "/members", body, MEMBER_TIMEOUT_S)).print(options)


def _member_replace(options: argparse.Namespace) -> int:
    """The new one first, until it votes; then the old one goes. No quorum gets smaller on the way."""
    body = {"id": options.id, "peer": options.peer, "http": options.http}
    endpoint, cluster = ask(options)
    members = [member["id"] for member in cluster["members"]]
    if options.old == options.id:
        return _renew_directory(options, endpoint, body, known=options.id in members)
    if options.old not in members:
        raise EndpointError(f"{options.old} is not a member; the members are {', '.join(members)}")
    if options.id not in members:
        _change(endpoint, "POST", "/members", body, MEMBER_TIMEOUT_S)
        _note(options, f"{options.id} is a learner; waiting until it has caught up and votes")
    _wait_for_vote(endpoint, options.id)
    _note(options, f"{options.id} votes; removing {options.old}")
    if call(endpoint, "GET", _PATH)["leader"] == options.old:
        _change(endpoint, "POST", "/transfer", {"target": options.id}, 10)
    return show(_change(endpoint, "DELETE", at("members", options.old), None, MEMBER_TIMEOUT_S)).print(options)


def _renew_directory(options: argparse.Namespace, endpoint: Endpoint, body: dict[str, Any], *, known: bool) -> int:
    """For a node that lost its directory and keeps its id, as a pod does: it goes first, since it could not be told
    from the new one. It does not answer, so that no more of the others must than before. Asked again, it goes on."""
    if known:
        _change(endpoint, "DELETE", at("members", options.id), None, MEMBER_TIMEOUT_S)
        _note(options, f"{options.id} is no member; adding it again, with whatever directory it has now")
    added = _change(endpoint, "POST", "/members", body, MEMBER_TIMEOUT_S)
    _note(options, f"{options.id} is a learner; waiting until it has caught up and votes")
    _wait_for_vote(endpoint, options.id, added["revision"])
    return show(call(endpoint, "GET", _PATH)).print(options)


def _note(options: argparse.Namespace, line: str) -> None:
    if not options.json:
        print(line, flush=True)


def _wait_for_vote(endpoint: Endpoint, node_id: str, since: int = 0) -> None:
    """By what `endpoint` knows of revision `since` and later."""
    end = time.monotonic() + CATCH_UP_S
    with Bar(f"{node_id} catches up") as bar:
        while time.monotonic() < end:
            cluster = call(endpoint, "GET", _PATH)
            member = next((each for each in cluster["members"] if each["id"] == node_id), None)
            if member is not None and member["role"] != "learner" and cluster["revision"] >= since:
                return
            bar.at(((member or {}).get("applied") or 0) / max(1, cluster["revision"]))
            time.sleep(_POLL_S)
    raise EndpointError(
        f"{node_id} has not caught up after {CATCH_UP_S} s: is it running, with the cluster's secret, and no "
        "[[members]] that lack it? It stays a learner; run the same command again to go on"
    )


def _member_remove(options: argparse.Namespace) -> int:
    endpoint, _ = ask(options)
    return show(_change(endpoint, "DELETE", at("members", options.id), None, MEMBER_TIMEOUT_S)).print(options)


def _transfer(options: argparse.Namespace) -> int:
    endpoint, cluster = ask(options)
    if options.to is not None:
        _check_heir(options.to, cluster)
    body = {} if options.to is None else {"target": options.to}
    return show(_change(endpoint, "POST", "/transfer", body, 10)).print(options)


def _check_heir(heir: str, cluster: dict[str, Any]) -> None:
    """The leader itself can only say that it hears nothing of such a member."""
    members = [member["id"] for member in cluster["members"]]
    if heir == cluster["leader"]:
        raise EndpointError(f"{heir} leads already. Nothing was changed.", code="no_target")
    if heir not in members:
        told = f"{heir} is not a member; the members are {', '.join(members)}. Nothing was changed."
        raise EndpointError(told, code="no_target")


def _snapshot(options: argparse.Namespace) -> int:
    """Of the first endpoint, and no other: whose disk it is written to matters."""
    endpoint = targets(options)[0]
    answer = _change(endpoint, "POST", "/snapshot", {}, SNAPSHOT_S)
    revision = answer["revision"]
    document = {"endpoint": endpoint.base, "revision": revision}
    return Shown(document, f"snapshot taken at revision {revision}").print(options)


def _change(endpoint: Endpoint, method: str, path: str, body: dict[str, Any] | None, limit_s: int) -> dict[str, Any]:
    """Waits for its turn: a member that votes since a moment ago may not be written down everywhere yet, and another
    leader may come in between."""
    end = time.monotonic() + limit_s
    while True:
        try:
            answer: dict[str, Any] = call(
                endpoint, method, f"{_PATH}{path}?timeout_ms={limit_s * 1000}", body, limit_s + 5
            )
            return answer
        except EndpointError as error:
            if error.code not in _SOON or time.monotonic() > end:
                raise
        time.sleep(_POLL_S)


# --- arguments --------------------------------------------------------------------------------------------------------


def add(commands: Commands) -> None:
    status = add_remote(commands, "status", "show the members of a cluster", _status)
    status.add_argument(
        "--watch", nargs="?", type=positive, const=1.0, metavar="S", help="again every S seconds (1 unless said)"
    )
    _add_member(commands)
    transfer = add_remote(commands, "transfer", "hand leadership to another member", _transfer)
    transfer.add_argument("--to", metavar="ID", help="which one (default: the most up to date)")
    transfer.add_argument("to", metavar="ID", nargs="?", default=argparse.SUPPRESS, help="the same as --to ID")
    add_remote(commands, "snapshot", "make the node at --endpoint take a snapshot now", _snapshot)


def _add_member(commands: Commands) -> None:
    actions = add_noun(commands, "member", "list, add, replace or remove members")
    add_remote(actions, "list", "the members, as status shows them", _member_list)
    adding = add_remote(actions, "add", "add a node that is running without [[members]]", _member_add)
    adding.add_argument("id")
    _add_addresses(adding)
    adding.add_argument(
        "--if-absent", action="store_true", help="a member of this id and these addresses is no mistake"
    )
    replace = add_remote(actions, "replace", "put a new node in the place of a lost one", _member_replace)
    replace.add_argument("old", help="the member to leave")
    replace.add_argument("id", help="the new one, running without [[members]]; the same for one with a new directory")
    _add_addresses(replace)
    remove = add_remote(actions, "remove", "remove a member for good", _member_remove)
    remove.add_argument("id")


def _add_addresses(added: Any) -> None:
    added.add_argument("--peer", required=True, metavar="HOST:PORT")
    added.add_argument("--http", required=True, metavar="HOST:PORT")
