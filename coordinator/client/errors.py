"""What can go wrong, as a user of the SDK sees it. The tree of it is in the docstring of `coordinator.client`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class HoldfastError(Exception):
    """`code` is the API's name of the mistake; `details` names the field, the limit or the holder."""

    def __init__(self, message: str, *, code: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = dict(details or {})


class Denied(HoldfastError):
    pass


class Invalid(Denied):
    pass


class NotAllowed(Denied):
    pass


class NotHeld(Denied):
    pass


class StaleToken(NotHeld):
    """A guard refused a write. `details`: the key, the token it came with, and the newest one seen."""


class NotFound(Denied):
    pass


class Conflict(Denied):
    pass


class LockBusy(Conflict):
    pass


class Gone(Denied):
    pass


class Compacted(Gone):
    """Read the state, then watch from `revision` on."""

    @property
    def revision(self) -> int:
        return int(self.details["revision"])


class TooMuch(Denied):
    pass


class Unavailable(HoldfastError):
    pass


class OutcomeUnknown(HoldfastError):
    def __init__(self, message: str, *, code: str = "", request_id: str | None = None) -> None:
        super().__init__(message, code=code)
        self.request_id = request_id


class LockLost(HoldfastError):
    pass


class LeaseLost(HoldfastError):
    pass


class SessionLost(HoldfastError):
    pass


class TaskLost(HoldfastError):
    pass


class Retry(HoldfastError):
    """`delay`: None leaves it to the queue's back-off. An attempt is used up all the same."""

    def __init__(self, message: str = "the handler asked for another attempt", *, delay: float | None = None) -> None:
        super().__init__(message, code="retry")
        self.delay = delay


class Stalled(LockLost):
    """`details`: how long the pause was, how long it might have been, and whether the token is current, if verified."""


_BY_STATUS: dict[int, type[Denied]] = {
    400: Invalid, 413: Invalid, 422: Invalid, 401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: Conflict, 410: Gone,
    429: TooMuch,
}  # fmt: skip
_NOT_HELD = frozenset(
    ("not_holder", "not_owner", "lease_expired", "session_expired", "unknown_lease", "unknown_session", "holder_fenced")
)
_BEFORE_IT_IS_KEPT = frozenset(("", "not_found", "unknown_namespace"))
_OF_WHAT_IS_SO = frozenset(("lifetime_reached", "would_close_cycle", "order_too_costly"))


def is_remembered(refusal: Denied) -> bool:
    """Whether the cluster keeps it under the id of its request: an earlier try that comes later is refused then too.

    Not what is refused for want of room, which may be there a moment later, nor in a namespace that there is not. Nor
    what does not come from the cluster's state: a token that one node does not take any more, or the page of a proxy.
    """
    if isinstance(refusal, NotHeld | NotFound | Conflict | Gone):
        return refusal.code not in _BEFORE_IT_IS_KEPT
    return refusal.code in _OF_WHAT_IS_SO


def had_been_granted(refusal: Denied) -> bool:
    """Whether it is of a batch of leases that was granted under the id of its request, and of which some, or all, have
    ended since: the others are leased."""
    return refusal.code == "lease_expired" and "granted" in refusal.details


def denied(status: int, error: Mapping[str, Any]) -> Denied:
    """The exception for an answer of the API whose outcome is `denied`."""
    code = str(error.get("code", ""))
    kind = NotHeld if code in _NOT_HELD else _BY_STATUS.get(status, Denied)
    return kind(str(error.get("message", f"HTTP {status}")), code=code, details=error.get("details"))
