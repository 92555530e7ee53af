"""One call: what its metadata says, how long it may take, and the metadata and status it ends with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from cluster.ports import Committed, Outcome
from coordinator.http.access import Caller, check_client, count_refusal, forbidden, hidden_leases
from coordinator.http.errors import ApiError, bad_request, from_denial, from_outcome
from coordinator.http.fields import Text
from coordinator.http.identity import identity_of
from coordinator.http.ports import NodeView
from coordinator.machine import results as r
from coordinator.machine.commands import Command
from coordinator.machine.limits import MAX_REQUEST_ID_BYTES
from coordinator.service import Service

NAMESPACE = "x-holdfast-namespace"
REQUEST_IDS = ("x-holdfast-request-id", "idempotency-key")
TIMEOUT_S = 5.0
TIMEOUT_S_MAX = 300.0

_NAMESPACE_TEXT = Text()
_REQUEST_ID_TEXT = Text(most=MAX_REQUEST_ID_BYTES)

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.UNAVAILABLE,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""By the status of the REST interface. Every other one is FAILED_PRECONDITION."""

_ABOUT_THE_LEASE = ("unknown_lease", "lease_expired", "not_owner", "session_owned", "lifetime_reached")
"""Denials that the contract's own `success` tells."""


class Call:
    """Metadata is read when it is asked for, so that a mistake in it ends the call as a refusal."""

    def __init__(self, node: NodeView, context: Any) -> None:
        self._node = node
        self._context = context
        self._code = ""

    # --- what it says ---------------------------------------------------------------------------------------------

    @property
    def service(self) -> Service:
        if self._node.service is None:
            reason = self._node.unready_reason() or "the node is not ready"
            raise ApiError(503, "not_ready", f"{reason}; ask another node", outcome="retry")
        return self._node.service

    @property
    def namespace(self) -> str:
        said = self._said(NAMESPACE)
        return "default" if said is None else _NAMESPACE_TEXT.read(NAMESPACE, said)

    @property
    def request_id(self) -> bytes | None:
        said = {value: name for name in REQUEST_IDS if (value := self._said(name)) is not None}
        if len(said) > 1:
            raise bad_request(f"{' and '.join(REQUEST_IDS)} differ; send one of them", field=REQUEST_IDS[0])
        return next((_REQUEST_ID_TEXT.read(name, value).encode() for value, name in said.items()), None)

    def _said(self, name: str) -> str | None:
        values = [value for key, value in self._context.invocation_metadata() or () if key == name]
        if len(values) > 1:
            raise bad_request(f"{name} is in the metadata twice", field=name)
        return values[0] if values else None

    # --- what comes of it -----------------------------------------------------------------------------------------

    async def enter(self) -> str:
        """Before its message has come, which may never be: ends the call of a stranger. The namespace it counts for."""
        return self._counts_for(await self._admit())

    async def allow(
        self, client_id: str, *, resource_id: str = "", lease_ids: Sequence[int] = (), urgent: bool = True
    ) -> frozenset[int]:
        """Takes a turn; ends the call if it gets none (Shed), or if its access token does not allow it. Those of the
        leases that it must not know of.

        Asked anew for everything a stream does, so that one whose token is revoked ends.
        """
        caller = await self._admit()
        await self._take_turn(caller, urgent=urgent)
        if caller is None:
            return frozenset()
        token, namespace = caller.token, self.namespace
        covered = token.covers("write", namespace, resource_id) if resource_id else token.reaches("write", namespace)
        if not covered:
            raise forbidden(token, "write", f"{resource_id[:64]} in namespace {namespace}".lstrip())
        check_client(token, client_id)
        return await hidden_leases(self.service, token, namespace, lease_ids)

    async def _admit(self) -> Caller | None:
        gate = self._node.gate
        if gate is None:
            return None
        return await gate.admit(self._node, self._said("authorization"), _certified(self._context))

    def _counts_for(self, caller: Caller | None) -> str:
        """None of those that there are for one that may not be there: it must use up nobody's share."""
        namespace = self.namespace
        if caller is not None and not caller.token.reaches("read", namespace):
            return ""
        return "" if self.service.machine.requests_per_s(namespace) is None else namespace

    async def _take_turn(self, caller: Caller | None, *, urgent: bool) -> None:
        known, admission = self._counts_for(caller), self._node.admission
        per_s = self.service.machine.requests_per_s(known) if known else None
        admission.admit(self.namespace, per_s, urgent=urgent)
        await admission.turn(known, asyncio.get_running_loop().time() + self._left_s)

    def not_found(self) -> None:
        """The answer says that the lease is the reason: there is none that this caller knows of."""
        self._code = "unknown_lease"

    @property
    def _left_s(self) -> float:
        left_s = self._context.time_remaining()
        return TIMEOUT_S if left_s is None else min(left_s, TIMEOUT_S_MAX)

    async def propose(self, command: Command) -> Outcome:
        """What was allowed."""
        return await self.work(command, self.request_id, self._left_s)

    async def work(self, command: Command, request_id: bytes | None, timeout_s: float) -> Outcome:
        turnstile, known = self._node.admission.turnstile, self._counts_for(None)
        turnstile.begin(known)
        try:
            return await self.service.propose(self.namespace, command, request_id, timeout_s)
        finally:
            turnstile.end(known)

    def settled(self, outcome: Outcome) -> Committed:
        """The committed answer, which may be a denial that `success` tells; any other ends the call."""
        if not isinstance(outcome, Committed):
            raise from_outcome(outcome)
        if isinstance(outcome.result, r.Denied):
            if outcome.result.code not in _ABOUT_THE_LEASE:
                raise from_denial(outcome.result)
            self._code = outcome.result.code
        return outcome

    def finish(self) -> None:
        """Puts the trailing metadata of an answer in place."""
        self._context.set_trailing_metadata(self._trailing({"x-holdfast-code": self._code}))

    async def refuse(self, error: ApiError) -> None:
        """Ends the call with the status of `error`; does not return."""
        count_refusal(self._node, error)
        said = {"code": error.code, "outcome": error.outcome, "field": str(error.details.get("field", ""))}
        trailing = self._trailing({f"x-holdfast-{name}": value for name, value in said.items()})
        await self._context.abort(_status(error), error.message, trailing)

    def _trailing(self, said: dict[str, str]) -> tuple[tuple[str, str], ...]:
        revision, leader = self._node.position()
        always = (("x-holdfast-revision", str(revision)), ("x-holdfast-leader", leader))
        return always + tuple((name, value) for name, value in said.items() if value)


def _certified(context: Any) -> str | None:
    """The client that the certificate of the connection names. The library asks for one only where it is demanded."""
    uris = context.auth_context().get("peer_uri", ())
    return identity_of({"subjectAltName": tuple(("URI", uri.decode(errors="replace")) for uri in uris)})


def _status(error: ApiError) -> Any:
    if error.outcome == "unknown" and error.status == 503:
        # The standard's own words for the first: the call may have taken effect.
        return grpc.StatusCode.DEADLINE_EXCEEDED if error.code == "deadline" else grpc.StatusCode.UNKNOWN
    if error.code == "forbidden":
        return grpc.StatusCode.PERMISSION_DENIED
    return _CODES.get(error.status, grpc.StatusCode.FAILED_PRECONDITION)
