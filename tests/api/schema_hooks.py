"""What schemathesis is told beyond the document, loaded by it (SCHEMATHESIS_HOOKS)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import schemathesis

WATCH = "/api/v1/watch"
PROGRESS_MS = "100"
NOT_THERE = frozenset(
    ("deadline", "no_answer", "wrong_node", "no_leader", "not_leader", "not_ready", "transfer_timeout")
)
"""While a cluster is being changed: who should answer is not there, has just lost the lead, or needs longer."""


SHORT = 16
_numbers = itertools.count()


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    if case.operation.path == WATCH:
        # One that says how far it has come ends after that, and not when the request's time is over.
        case.headers.setdefault("Accept", "text/event-stream")
        if isinstance(case.query, dict):
            case.query.setdefault("progress_ms", PROGRESS_MS)
    _be_a_new_request(case.body, case.headers)


def _be_a_new_request(body: Any, headers: Any) -> None:
    """All that is drawn has one of a few request ids: most would be refused because another request had it before."""
    given = body.get("request_id") if isinstance(body, dict) else None
    if isinstance(given, str) and given == headers.get("Idempotency-Key", given) and 0 < len(given) <= SHORT:
        body["request_id"] = f"{given}-{next(_numbers)}"
        headers.pop("Idempotency-Key", None)
    elif given is None and 0 < len(headers.get("Idempotency-Key") or "") <= SHORT:
        headers["Idempotency-Key"] += f"-{next(_numbers)}"


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """A 503 of the operations on the cluster is an answer, too, if it says that nobody was there to do it."""
    if response.status_code != 503 or not case.operation.path.startswith("/api/v1/cluster"):
        return True
    return json.loads(response.content)["error"]["code"] not in NOT_THERE
