"""`holdfast queue …`: queues of tasks, what is in them, and who has their shards. `queue work` is in `working`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from coordinator.cli import working
from coordinator.cli.arguments import Commands, add_noun, add_remote, count, not_negative, positive
from coordinator.cli.asking import PAGE, add_asking, ask, at, given, more, ms, pages, refuse
from coordinator.cli.output import Bar, Shown, complain, fields, lasting, plain, table
from coordinator.endpoint import EndpointError

if TYPE_CHECKING:
    from coordinator.client import Client

STATES = ("ready", "delayed", "blocked", "leased", "suspect", "dead", "done")
FINISHED = ("ready", "dead", "done")
TIMES = ("lease", "heartbeat", "hold_down", "max_hold_down", "back_off", "max_back_off", "retention")
PIECE = 500
"""So many tasks are put in by one request."""
NUMBERS = ("suspect_beats", "debounce_beats", "max_attempts", "concurrency")

# --- queues -----------------------------------------------------------------------------------------------------------


async def _put(client: Client, options: argparse.Namespace) -> Shown:
    """The interface sets every rule; what is not said here stays as it is."""
    from coordinator.client import NotFound  # noqa: PLC0415 - the SDK's libraries take longer than most commands

    try:
        before = await client.call("GET", at("queues", options.queue))
    except NotFound:
        before = {}
    rules = [*(f"{name}_ms" for name in TIMES), *NUMBERS]
    said = given(
        **{f"{name}_ms": ms(getattr(options, name)) for name in TIMES},
        **{name: getattr(options, name) for name in NUMBERS},
    )
    kept = {name: before[name] for name in rules if name in before}
    answer = await client.call("PUT", at("queues", options.queue), {**kept, **said})
    done = "made" if answer["created"] else "changed"
    lease, beat = lasting(answer["lease_ms"]), lasting(answer["heartbeat_ms"])
    return Shown(answer, f"{plain(options.queue)} {done}: leases of {lease}, a heartbeat every {beat}")


async def _list(client: Client, options: argparse.Namespace) -> Shown:
    answer = await pages(client, "/queues", {}, "queues", options.limit)
    names = ("queue", "standing", "ready", "delayed", "leased", "suspect", "dead", "bounced")
    rows = [
        [*(each[name] for name in names), lasting(each["oldest_ready_age_ms"] or None), each["workers"], each["shards"]]
        for each in answer["queues"]
    ]
    columns = (*names, "oldest", "workers", "shards")
    return Shown(answer, table(columns, rows, empty="no queues") + more(answer))


async def _show(client: Client, options: argparse.Namespace) -> Shown:
    found = await client.call("GET", at("queues", options.queue))
    waited = found["waited_ms"] // found["handed_out"] if found["handed_out"] else None
    pairs = [
        ("queue", found["queue"]),
        ("standing", found["standing"]),
        ("tasks", ", ".join(f"{found[state]} {state}" for state in STATES)),
        ("ever", f"{found['completed']} completed, {found['failed']} failures, {found['bounced']} bounced"),
        ("oldest ready", lasting(found["oldest_ready_age_ms"] or None)),
        ("mean wait", lasting(waited)),
        ("lease", lasting(found["lease_ms"])),
        ("heartbeat", f"{lasting(found['heartbeat_ms'])}, suspected after {found['suspect_beats']}"),
        ("debounce", f"{found['debounce_beats']} heartbeats"),
        ("hold-down", f"{lasting(found['hold_down_ms'])}, up to {lasting(found['max_hold_down_ms'])}"),
        ("attempts", f"{found['max_attempts']}, back-off from {lasting(found['back_off_ms'])}"),
        ("retention", lasting(found["retention_ms"])),
        ("concurrency", f"{found['concurrency'] or 'any number'} a worker"),
        ("shards", f"{found['shards']} among {found['workers']} workers" if found["shards"] else None),
    ]
    return Shown(found, fields(pairs))


async def _delete(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("DELETE", at("queues", options.queue))
    return Shown(answer, f"{plain(options.queue)} is deleted")


def _standing(verb: str) -> Any:
    async def stand(client: Client, options: argparse.Namespace) -> Shown:
        answer = await client.call("POST", at("queues", options.queue, verb))
        return Shown(answer, f"{plain(options.queue)} is {answer['standing']}, and was {answer['before']}")

    return stand


# --- tasks ------------------------------------------------------------------------------------------------------------


def _run_enqueue(options: argparse.Namespace) -> int:
    if options.lines == (options.payload is not None):
        message = "say one PAYLOAD (null for none, - for standard input), or --lines"
        return complain(options, message, 2, code="usage")
    return ask(options, _enqueue)


async def _enqueue(client: Client, options: argparse.Namespace) -> Shown:
    from coordinator.client import HoldfastError  # noqa: PLC0415 - as above

    said = given(priority=options.priority, delay_ms=ms(options.delay), key=options.key, lock_key=options.lock)
    said |= given(resource_id=options.resource)
    if options.lines:
        # Not splitlines(): JSON may have line separators of Unicode inside its texts.
        payloads = [_read(line) for line in sys.stdin.read().split("\n") if line.strip()]
    else:
        payloads = [_read(sys.stdin.read() if options.payload == "-" else options.payload)]
    made: list[dict[str, Any]] = []
    code = 0
    try:
        with Bar("enqueue") as bar:
            for start in range(0, len(payloads), PIECE):
                tasks = [{"payload": payload, **said} for payload in payloads[start : start + PIECE]]
                made += (await client.call("POST", at("queues", options.queue, "tasks"), {"tasks": tasks}))["tasks"]
                bar.at(len(made) / len(payloads), f"{len(made)} of {len(payloads)}")
    except HoldfastError as error:
        if not made:
            raise
        code = refuse(options, error, f"the first {len(made)} of {len(payloads)} tasks are in, then: ")
    text = "\n".join(each["task_id"] + (" (known already)" if each["existing"] else "") for each in made)
    return Shown({"queue": options.queue, "tasks": made}, text or "nothing to put in", code)


def _read(text: str) -> Any:
    """JSON or, if it is none, the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise EndpointError("a payload is nested too deeply", code="bad_request") from None


async def _tasks(client: Client, options: argparse.Namespace) -> Shown:
    where, query = at("queues", options.queue, "tasks"), given(state=options.state)
    answer = await pages(client, where, query, "tasks", options.limit)
    rows = [
        [each["task_id"], each["state"], each["priority"], each["attempt"], each["bounces"], lasting(each["age_ms"]),
         each["owner"], each["token"], lasting(each["revoked_in_ms"]), each["last_error"]]
        for each in answer["tasks"]
    ]  # fmt: skip
    columns = ("task", "state", "priority", "attempt", "bounces", "age", "owner", "token", "taken in", "last error")
    return Shown(answer, table(columns, rows, empty="no tasks") + more(answer))


async def _get(client: Client, options: argparse.Namespace) -> Shown:
    found = await client.call("GET", at("queues", options.queue, "tasks", options.task))
    times = ("ttl_ms", "revoked_in_ms", "ready_in_ms", "age_ms")
    pairs = [
        (name.removesuffix("_ms").replace("_", " "), lasting(value) if name in times else value)
        for name, value in found.items()
        if name != "payload"
    ]
    return Shown(found, fields([*pairs, ("payload", json.dumps(found["payload"], ensure_ascii=False))]))


async def _revoke(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("POST", at("queues", options.queue, "tasks", options.task, "revoke"))
    return Shown(answer, f"{options.task} was taken from {plain(answer['owner'] or 'nobody')}")


async def _drop(client: Client, options: argparse.Namespace) -> Shown:
    answer = await client.call("DELETE", at("queues", options.queue, "tasks", options.task))
    return Shown(answer, f"{options.task} is dropped")


async def _retry(client: Client, options: argparse.Namespace) -> Shown:
    return await _all_of(client, options, "retry", "retried", {})


async def _purge(client: Client, options: argparse.Namespace) -> Shown:
    return await _all_of(client, options, "purge", "purged", {"state": options.state})


async def _all_of(client: Client, options: argparse.Namespace, verb: str, done: str, said: dict[str, Any]) -> Shown:
    """In pieces, each a request that is quickly through the log."""
    moved, left, most = 0, 1, options.max
    with Bar(verb) as bar:
        while left and (most is None or moved < most):
            size = PAGE if most is None else min(PAGE, most - moved)
            answer = await client.call("POST", at("queues", options.queue, verb), {**said, "max": size})
            moved, left = moved + answer[done], answer["left"]
            bar.at(moved / max(1, moved + left), f"{moved} of {moved + left}")
            if not answer[done]:
                break
    return Shown({done: moved, "left": left}, f"{moved} {done}, {left} left")


# --- shards -----------------------------------------------------------------------------------------------------------


async def _shards(client: Client, options: argparse.Namespace) -> Shown:
    where = at("queues", options.queue, "shards")
    if options.put is not None:
        said = {"count": int(options.put)} if options.put.isdecimal() else {"shards": options.put.split(",")}
        answer = await client.call("PUT", where, said)
        return Shown(answer, "{shards} shards: {added} added, {removed} removed, {moved} change hands".format(**answer))
    answer = await pages(client, where, {}, "shards", options.limit)
    rows = [[each["shard"], each["owner"], each["token"], each["revoking"]] for each in answer["shards"]]
    return Shown(answer, table(("shard", "owner", "token", "asked back"), rows, empty="no shards") + more(answer))


async def _workers(client: Client, options: argparse.Namespace) -> Shown:
    answer = await pages(client, at("queues", options.queue, "workers"), {}, "workers", options.limit)
    names = ("worker_id", "state", "capacity", "shards", "revoking", "bounces")
    rows = [[*(each[name] for name in names), lasting(each["revoked_in_ms"])] for each in answer["workers"]]
    columns = ("worker", "state", "capacity", "shards", "asked back", "bounces", "given up in")
    return Shown(answer, table(columns, rows, empty="no workers") + more(answer))


# --- the parsers ------------------------------------------------------------------------------------------------------


def add(commands: Commands) -> None:
    actions = add_noun(commands, "queue", "queues of tasks: fill them, look at them, work them off")
    putting = add_asking(actions, "put", "make a queue, or change its rules", _put)
    for name in TIMES:
        kind = positive if name in ("lease", "heartbeat") else not_negative
        putting.add_argument("--" + name.replace("_", "-"), type=kind, metavar="S")
    for name in NUMBERS:
        kind = _whole if name in ("debounce_beats", "concurrency") else count
        putting.add_argument("--" + name.replace("_", "-"), type=kind, metavar="N")
    listing = add_asking(actions, "list", "queues and their numbers", _list)
    showing = add_asking(actions, "show", "one queue: its rules and numbers", _show, aliases=["get"])
    deleting = add_asking(actions, "delete", "delete an empty queue", _delete)
    pausing = add_asking(actions, "pause", "hand nothing out", _standing("pause"))
    draining = add_asking(actions, "drain", "take nothing in", _standing("drain"))
    resuming = add_asking(actions, "resume", "as ever", _standing("resume"))
    sharing = add_asking(actions, "shards", "its shards and who has them, or a new set", _shards)
    sharing.add_argument("--put", metavar="N|NAME,…", help="the whole set, by number or by name")
    working_there = add_asking(actions, "workers", "those that share its shards", _workers)
    for added in (putting, showing, deleting, pausing, draining, resuming, sharing, working_there):
        added.add_argument("queue", metavar="QUEUE")
    _add_tasks(actions)
    for added in (listing, sharing, working_there):
        added.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100")
    working.add(actions)


def _add_tasks(actions: Commands) -> None:
    about = "put a task in; its payload is JSON, else the text itself"
    filling = add_remote(
        actions, "enqueue", about, _run_enqueue, usage="holdfast queue enqueue QUEUE PAYLOAD|--lines [options]"
    )
    listing = add_asking(actions, "tasks", "its tasks", _tasks)
    listing.add_argument("--state", choices=STATES)
    listing.add_argument("--limit", type=count, default=100, metavar="N", help="default: 100")
    getting = add_asking(actions, "task", "one task and its payload", _get)
    revoking = add_asking(actions, "revoke", "take a task from its owner, for others", _revoke)
    dropping = add_asking(actions, "drop", "a task is not wanted any more", _drop)
    retrying = add_asking(actions, "retry", "give dead letters all their attempts again, oldest first", _retry)
    purging = add_asking(actions, "purge", "forget tasks of one state, oldest first", _purge)
    purging.add_argument("--state", choices=FINISHED, default="dead", help="default: dead")
    for added in (retrying, purging):
        added.add_argument("--max", type=count, metavar="N", help="at most so many (default: all)")
    filling.add_argument("--priority", type=_whole, metavar="N", help="greater goes first")
    filling.add_argument("--delay", type=not_negative, metavar="S")
    filling.add_argument("--key", help="of several with one key only the first is taken in")
    filling.add_argument("--lock", metavar="KEY", help="a lock that goes with the task")
    filling.add_argument("--resource", metavar="ID", help="a resource that is kept until the task is done")
    filling.add_argument("--lines", action="store_true", help="a task for every line of standard input")
    for added in (filling, listing, getting, revoking, dropping, retrying, purging):
        added.add_argument("queue", metavar="QUEUE")
    for added in (getting, revoking, dropping):
        added.add_argument("task", metavar="TASK")
    payload = filling.add_argument("payload", metavar="PAYLOAD", help="- reads it from standard input")
    payload.required = False  # nargs="?" would take "nothing" for it as soon as an option stands before it


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)
