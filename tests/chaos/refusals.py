"""At a quiet moment: what is refused leaves the state of every node as it was (I17).

The state is seen by backups, which are themselves written down in the audit trail, and time passes between two of them:
those two are left out of the comparison. What runs out by itself changes the state, too. So it is tried again until
nothing did: refusals that leave a trace would leave it each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.backups import Backup
from coordinator.endpoint import EndpointError, NoAnswer, call
from coordinator.machine.requests import refusals
from tests.chaos.containers import SETTLE_S, Containers
from tests.chaos.digests import taken
from tests.chaos.records import Record, of
from tests.chaos.tally import Verdict
from tests.waiting import wait_until

_NOBODY = "nobody"
REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/locks/release", {"lock_key": "free", "client_id": _NOBODY, "fencing_token": 1}),
    ("/locks/renew", {"lock_key": "free", "client_id": _NOBODY, "fencing_token": 1, "extend_time_ms": 60_000}),
    ("/locks/acquire", {"lock_key": "free", "client_id": _NOBODY, "lease_time_ms": -1}),
    ("/locks/acquire", {"lock_key": ["free"], "client_id": {}, "lease_time_ms": 1_000}),
    ("/leases/release", {"resource_id": "first", "client_id": _NOBODY}),
    ("/leases/renew", {"lease_id": "00000000000000ff", "client_id": _NOBODY, "extend_duration_ms": 1_000}),
    ("/edges", {"edges": [{"source": "nowhere", "target": "no-thing"}]}),
    ("/queues/nowhere/tasks", {"tasks": [{"payload": 1}]}),
    ("/tombstones/ack", {"holder_id": _NOBODY, "holder_token": 1, "revision": 1}),
)


def nothing_refused_is_kept(containers: Containers, directory: Path, records: Sequence[Record]) -> Verdict:
    refused, let_in = 0, [f"what should be refused was not: {each['path']} (I17)" for each in of(records, "let_in")]

    def unchanged() -> bool:
        nonlocal refused
        before = {node: bare_digest(backup) for node, backup in taken(containers, directory).items()}
        refused += sum(_knock(containers.endpoint(node), let_in) for node in containers.nodes)
        after = {node: bare_digest(backup) for node, backup in taken(containers, directory).items()}
        return len(before) == len(containers.nodes) and before == after

    try:
        wait_until(unchanged, SETTLE_S, "refusals that leave the state as it was", 0.2)
    except AssertionError as error:
        let_in.append(f"{error} (I17)")
    during = len(of(records, "turned_away"))
    return Verdict("I17", {"refused during the run": during, "refused at a quiet moment": refused}, let_in)


def bare_digest(backup: Backup) -> bytes:
    """Of the state without its clock, without the audit trail, and without the memory that something was refused."""
    state = backup.machine.state
    state.now_ms = 0
    state.refusals = refusals()
    state.access.trail.actions.clear()
    state.access.trail.last = 0
    return backup.machine.digest()


def _knock(endpoint: str, let_in: list[str]) -> int:
    count = 0
    for path, body in REFUSED:
        try:
            call(endpoint, "POST", f"/api/v1{path}", body, timeout_s=10)
            let_in.append(f"what should be refused was not: {path} at {endpoint} (I17)")
        except NoAnswer:
            continue
        except EndpointError:
            count += 1
    return count
