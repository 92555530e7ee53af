"""The one error shape, and which status a refusal gets.

`outcome` tells the client what to do: `denied` (nothing happened, and the same request fails again), `retry` (nothing
happened, send it again), `unknown` (it may have happened; repeat it only under the same request id).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cluster.ports import Denied, Unknown
from coordinator.machine import results as r

ErrorOutcome = Literal["denied", "retry", "unknown"]

RETRY_AFTER_S = 1

_DENIALS: dict[str, tuple[int, ErrorOutcome]] = {
    "no_leader": (503, "retry"),
    "not_leader": (503, "retry"),
    "not_ready": (503, "retry"),
    "replaced": (503, "retry"),
    "stopping": (503, "retry"),
    "quorum_at_risk": (503, "retry"),
    "not_caught_up": (503, "retry"),
    "overloaded": (429, "retry"),
    "change_pending": (409, "retry"),
    "snapshot_failed": (503, "retry"),
    "not_a_member": (404, "denied"),
    "too_large": (413, "denied"),
}
"""Denials of the cluster that are not plain conflicts. Every other code is 409, denied."""

_REFUSALS: dict[r.DenialCode, tuple[int, ErrorOutcome]] = {
    "malformed": (400, "denied"),
    "unknown_namespace": (404, "denied"),
    "unknown_lease": (404, "denied"),
    "unknown_session": (404, "denied"),
    "unknown_lock": (404, "denied"),
    "unknown_waiter": (404, "denied"),
    "unknown_resource": (404, "denied"),
    "unknown_edge": (404, "denied"),
    "unknown_reclaim": (404, "denied"),
    "unknown_queue": (404, "denied"),
    "unknown_task": (404, "denied"),
    "unknown_worker": (404, "denied"),
    "unknown_holder": (404, "denied"),
    "unknown_token": (404, "denied"),
    "holder_fenced": (403, "denied"),
    "tombstoned": (410, "denied"),
    "lease_expired": (403, "denied"),
    "session_expired": (403, "denied"),
    "not_owner": (403, "denied"),
    "not_holder": (403, "denied"),
    "resource_reclaiming": (410, "denied"),
    "lifetime_reached": (422, "denied"),
    "would_close_cycle": (422, "denied"),
    "order_too_costly": (422, "denied"),
    "quota_exceeded": (429, "retry"),
    "capacity_exceeded": (429, "retry"),
}
"""Denials of the machine. Every other code is 409, denied."""


class ApiError(Exception):
    """Ends a request with the one error shape. Raised by routes, turned into an answer by the middleware."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        outcome: ErrorOutcome = "denied",
        details: Mapping[str, Any] | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        """`beside`: fields of the answer next to the error, such as `acquired: false`."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.outcome = outcome
        self.details = dict(details or {})
        self.beside = dict(beside or {})
        self.more_headers: Mapping[str, str] = {}

    def body(self) -> dict[str, Any]:
        return self.beside | {
            "error": {
                "code": self.code,
                "message": self.message,
                "outcome": self.outcome,
                "details": self.details,
            }
        }

    def headers(self) -> dict[str, str]:
        own = {"WWW-Authenticate": 'Bearer realm="holdfast"'} if self.status == 401 else {}
        if self.outcome == "retry":
            own["Retry-After"] = str(RETRY_AFTER_S)
        return {**own, **self.more_headers}


def bad_request(message: str, **details: Any) -> ApiError:
    return ApiError(400, "bad_request", message, details=details)


def from_outcome(outcome: Denied | Unknown, beside: Mapping[str, Any] | None = None) -> ApiError:
    """What the cluster says when a command did not commit."""
    if isinstance(outcome, Unknown):
        return ApiError(503, outcome.code, outcome.message, outcome="unknown", beside=beside)
    status, meaning = _DENIALS.get(outcome.code, (409, "denied"))
    return ApiError(status, outcome.code, outcome.message, outcome=meaning, beside=beside)


def from_denial(denied: r.Denied, beside: Mapping[str, Any] | None = None) -> ApiError:
    """What the machine says of a command that committed and changed nothing."""
    status, meaning = _REFUSALS.get(denied.code, (409, "denied"))
    return ApiError(status, denied.code, denied.message, outcome=meaning, details=dict(denied.details), beside=beside)
