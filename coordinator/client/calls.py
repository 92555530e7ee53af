"""Requests to the cluster: any node, the leader preferred, repeated as their outcome allows, never past their deadline.

A request that was refused is not repeated. (After a try whose outcome is unknown, only a refusal that the cluster
remembers is one: any other leaves open what becomes of that try.) One that nobody took is sent to the next node. One
whose outcome is unknown, because the connection broke or the answer said so, is repeated under its request id, which
applies it once. So is one that waits at a node which stands still: another node is asked before the first is hung up
on, so it keeps its place.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import ssl
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from coordinator.client import clock
from coordinator.client.endpoints import named
from coordinator.client.errors import Denied, HoldfastError, OutcomeUnknown, TooMuch, Unavailable, denied, is_remembered
from coordinator.client.members import Members
from coordinator.client.pulse import Pulse

FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 1.0
PAUSES = 8
"""No pause is longer than this part of the time there is: what is nearly over must not be slept through."""
ATTEMPT_S = 2.0
"""How long one node may take to answer before another is asked: longer than an election by far."""
MIN_ATTEMPT_S = 0.5
REST = 2 / 3
"""What is more than that leaves so much of the time at most, and the others the rest."""
CONNECT_S = 1.0
CONNECT_AT = 0.9
"""The part of an attempt that a connection may take to be made. Past it nothing was sent, and that is known."""
HUNG_UP_S = 1.0
"""Who ends a connection sooner than this, without an answer that could be read, is no node to wait at: one that serves
TLS and was asked without, or another port than the one of HTTP."""
LAST_ATTEMPT_S = 0.1
LAST_ATTEMPT_AT = 1 / 10
"""No attempt but the first begins with less time, or less of the time there was, to be answered in. What it asked for
would be done, or not, and nobody would know."""
CLOSED, UNUSABLE = "this client is closed", "client_unusable"
OUTCOMES = ("denied", "retry", "unknown")
"""One of them is in every error of a node."""
POSTED_READS = frozenset(("/fencing/check", "/leases/lookup"))
"""They change nothing, so they take no request id."""

_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]+)?")
"""A pause as nodes ask for it; others may say a date."""

_log = logging.getLogger("holdfast.client")


@dataclass(frozen=True, slots=True)
class Answer:
    """`sent`: when the attempt that was answered left, by `clock.now()`; what is granted counts from then."""

    status: int
    body: Any
    revision: int
    sent: float


def new_request_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class _Request:
    """`content`: a body that is not JSON."""

    method: str
    path: str
    body: Mapping[str, Any] | None
    query: Mapping[str, str] | None
    accepts: Sequence[int]
    content: bytes | None
    headers: Mapping[str, str] | None


class _Retry(Exception):
    """This attempt changed nothing, or its outcome is not known. `pause_s`: what the node asked for. `reached`: there
    was somebody. `silent`: who took longer than the attempt might."""

    def __init__(
        self, why: str, *, unknown: bool, pause_s: float = 0.0, reached: bool = True, silent: bool = False
    ) -> None:
        super().__init__(why)
        self.unknown, self.pause_s, self.reached, self.silent = unknown, pause_s, reached, silent


class _Patience:
    """How long an attempt may take: a node that is silent leaves time for the others, and who is given little must not
    spend it all on the first. Each time that one was silent, the next may take twice as long: nodes that are all slow
    must not be hung up on again and again."""

    def __init__(self, limit_s: float, endpoints: int) -> None:
        self._least_s = self._next_s = min(ATTEMPT_S, max(MIN_ATTEMPT_S, limit_s / endpoints))

    def of(self, left_s: float) -> float:
        return max(self._least_s, min(self._next_s, REST * left_s))

    def after(self, failed: _Retry) -> None:
        if failed.silent:
            self._next_s *= 2


class _Asking:
    """The attempts of one call that may overlap. A node that sees its client hang up ends the wait of that request,
    unless it was asked for again before: so none is hung up on before the call is over."""

    def __init__(self, *, overlap: bool) -> None:
        self.overlap = overlap
        self._attempts: list[asyncio.Task[Answer]] = []

    def begin(self, attempt: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
        self._attempts.append(asyncio.get_running_loop().create_task(attempt))
        return self._attempts[-1]

    async def __aenter__(self) -> _Asking:
        return self

    async def __aexit__(self, *_: object) -> None:
        for attempt in self._attempts:
            attempt.cancel()
        if self._attempts:
            await asyncio.gather(*self._attempts, return_exceptions=True)


class Calls:
    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        namespace: str,
        timeout: float,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        follow_members: bool = True,
    ) -> None:
        self.timeout = timeout
        self._headers = {"X-Holdfast-Namespace": namespace, **(headers or {})}
        self._tls = tls
        self.new_connector: Callable[[], aiohttp.BaseConnector] = self._tcp
        """What makes connections, asked for with the first request: a simulation has its own."""
        self._session: aiohttp.ClientSession | None = None
        self.closed = False
        self.members = Members(
            named(endpoints, "http" if tls is None else "https"), self.session, follow=follow_members
        )
        self._pulse = Pulse(self.session, self.members.heard)

    async def close(self) -> None:
        self.closed = True
        await self.members.close()
        await self._pulse.close()
        if self._session is not None:
            await self._session.close()

    def session(self) -> aiohttp.ClientSession:
        if self.closed:
            raise _closed()
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=self.new_connector(), headers=self._headers)
        return self._session

    def _tcp(self) -> aiohttp.BaseConnector:
        return aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ssl=self._tls or True)

    @property
    def endpoints(self) -> list[str]:
        """Those that are asked now: the members, and what else was given."""
        return self.members.endpoints

    @property
    def current(self) -> str:
        return self.members.current

    def move_on(self, away_from: str = "") -> None:
        """To the next node. `away_from`: unless another call, that the same node failed, has been there first."""
        self.members.move_on(away_from)

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
        waits: float = 0.0,
        request_id: str | None = None,
        accepts: Sequence[int] = (),
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """`waits`: how long it may wait at a node, once one was reached. `accepts`: refusals that are answers here.

        `content` is sent in the place of `body`, and without a request id: it must be something that may be repeated.
        """
        what, limit_s = f"{method} {path}", self.timeout if timeout is None else timeout
        until = clock.now() + limit_s + waits
        patience = _Patience(limit_s, len(self.endpoints))
        mutates = method != "GET" and path not in POSTED_READS
        if mutates and content is None:
            body = {**(body or {}), "request_id": (request_id := request_id or new_request_id())}
        request = _Request(method, path, body, query, accepts, content, headers)
        least_s = min(LAST_ATTEMPT_S, LAST_ATTEMPT_AT * limit_s) if mutates else 0.0
        unknown, reached, pause_s, failure = False, False, FIRST_PAUSE_S, "no attempt was made"
        async with _Asking(overlap=waits > 0) as asking:
            for attempt in range(1_000_000):
                left, endpoint = until - clock.now(), self.current
                if left <= (least_s if attempt else 0) or (attempt and not reached and left <= waits):
                    break  # it could not be answered any more, or nobody is there to wait at
                try:
                    return await self._try_at(endpoint, request, min(left, patience.of(left - waits) + waits), asking)
                except Denied as refusal:
                    if not unknown or is_remembered(refusal):
                        raise
                    raise _unknown(what, f"{failure}; refused since: {refusal}", request_id) from refusal
                except _Retry as retry:
                    failure, reached = str(retry), reached or retry.reached
                    unknown = unknown or (retry.unknown and mutates)
                    patience.after(retry)
                    if self.closed:
                        break
                    _log.debug("%s %s is tried again: %s", method, path, failure)
                    self.move_on(endpoint)
                    if attempt % len(self.endpoints) == len(self.endpoints) - 1 or retry.pause_s:
                        await _pause(max(retry.pause_s, pause_s), until)
                        pause_s = min(2 * pause_s, MAX_PAUSE_S, max(FIRST_PAUSE_S, limit_s / PAUSES))
        raise self._in_vain(what, failure, request_id, unknown=unknown, mutates=mutates)

    def _in_vain(
        self, what: str, failure: str, request_id: str | None, *, unknown: bool, mutates: bool
    ) -> HoldfastError:
        """What is under way when the client is closed may be done as well."""
        if unknown:
            said, code = (CLOSED, UNUSABLE) if self.closed else (failure, "")
            return _unknown(what, said, request_id, code)
        return _closed() if self.closed else _untaken(what, failure, mutates=mutates)

    async def _try_at(self, endpoint: str, request: _Request, limit_s: float, asking: _Asking) -> Answer:
        """An attempt. One that may overlap may take long, at a node that is looked at meanwhile; left, it goes on until
        all is over."""
        if not asking.overlap:
            return await self._attempt(request, endpoint, limit_s)
        attempt = asking.begin(self._attempt(request, endpoint, limit_s))
        lost = asyncio.ensure_future(self._pulse.until_lost(endpoint))
        try:
            await asyncio.wait({attempt, lost}, return_when=asyncio.FIRST_COMPLETED)
            if attempt.done():
                return attempt.result()
            if self.closed or lost.cancelled():  # nobody looks at nodes for a client that is closed
                raise _Retry(CLOSED, unknown=True)
            self.members.unreached(endpoint)
            raise _Retry(lost.result(), unknown=True)
        finally:
            lost.cancel()

    async def _attempt(self, request: _Request, endpoint: str, limit_s: float) -> Answer:
        if self.closed:
            raise _Retry(CLOSED, unknown=False, reached=False)
        sent = clock.now()
        connect_s = CONNECT_AT * limit_s
        timeout = aiohttp.ClientTimeout(
            total=limit_s,
            connect=connect_s,
            sock_connect=min(CONNECT_S, connect_s),
            ceil_threshold=math.inf,  # else up to a second more: longer ones would end on whole seconds of the clock
        )
        try:
            async with self.session().request(
                request.method,
                f"{endpoint}/api/v1{request.path}",
                json=request.body if request.content is None else None,
                data=request.content,
                params=request.query,
                headers=request.headers,
                timeout=timeout,
            ) as response:
                raw = await response.read()
                status, headers = response.status, response.headers
        except aiohttp.ClientConnectorCertificateError as error:
            told = f"{endpoint} shows a certificate that is not believed ({error.certificate_error})"
            raise _Retry(
                f"{told}: name its authority, and reach it by a name that is in it", unknown=False, reached=False
            ) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self.members.unreached(endpoint)
            why = getattr(error, "strerror", None) or error
            raise _Retry(f"{endpoint} cannot be reached ({why})", unknown=False, reached=False) from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            self.members.unreached(endpoint)
            silent = isinstance(error, TimeoutError)
            reached = silent or clock.now() - sent >= HUNG_UP_S
            raise _Retry(_unanswered(endpoint, error), unknown=True, reached=reached, silent=silent) from error
        self.members.heard(endpoint, headers)
        content = _decoded(raw)
        if status < 400 and content is None and raw and "X-Holdfast-Revision" not in headers:
            raise _Retry(f"{endpoint} answers as no node does (HTTP {status})", unknown=True)
        if status < 400 or (status in request.accepts and _own(content).get("code")):
            return Answer(status, content, int(headers.get("X-Holdfast-Revision") or 0), sent)
        raise _failure(endpoint, status, content, headers.get("Retry-After"))


def _closed() -> HoldfastError:
    return HoldfastError(CLOSED, code=UNUSABLE)


def _unknown(what: str, failure: str, request_id: str | None, code: str = "") -> OutcomeUnknown:
    told = f"{what} was sent, and no node could say what became of it: {failure}"
    return OutcomeUnknown(told, code=code, request_id=request_id)


def _untaken(what: str, failure: str, *, mutates: bool) -> Unavailable:
    known = "; it was not done" if mutates else ""
    return Unavailable(f"no node took {what} in time{known}: {failure}; is a majority of the cluster running?")


def _unanswered(endpoint: str, error: Exception) -> str:
    if isinstance(error, aiohttp.ClientResponseError):  # its text quotes what came, which may be anything
        return f"{endpoint} does not answer in HTTP: is it the node's http address, and not its peer or gRPC one?"
    told = f"{endpoint} did not answer ({type(error).__name__}: {error})"
    broken = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError)
    return f"{told}; does it serve TLS (https://)?" if broken and endpoint.startswith("http://") else told


async def _pause(seconds: float, until: float) -> None:
    """A little shorter than that, and no two alike."""
    await asyncio.sleep(max(0.0, min(seconds * random.uniform(0.5, 1.0), until - clock.now())))


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return None


def _said(content: Any) -> dict[str, Any]:
    """The error of an answer, whoever made it."""
    said = content.get("error") if isinstance(content, dict) else None
    return said if isinstance(said, dict) else {}


def _own(content: Any) -> dict[str, Any]:
    """The error of a node. What stands between may have errors of its own, with codes that say nothing here."""
    error = _said(content)
    return error if error.get("outcome") in OUTCOMES else {}


def _failure(endpoint: str, status: int, content: Any, retry_after: str | None) -> Exception:
    message = str(_said(content).get("message", f"HTTP {status}"))
    error = {"message": message, **_own(content)}
    code = str(error.get("code", ""))
    outcome = error.get("outcome", "unknown" if status >= 500 else "denied")
    if code in ("quota_exceeded", "capacity_exceeded"):
        return TooMuch(message, code=code, details=error.get("details"))
    if outcome == "denied":
        return denied(status, error)
    pause_s = float(retry_after) if status == 429 and retry_after and _SECONDS.fullmatch(retry_after) else 0.0
    return _Retry(f"{endpoint}: {message}", unknown=outcome == "unknown", pause_s=pause_s)


__all__ = ["Answer", "Calls", "HoldfastError", "new_request_id"]
