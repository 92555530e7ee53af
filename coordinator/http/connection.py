"""One client's connection: aiohttp's own, with an eye on how long its head takes and whether its answers are taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import ContentEncodingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD

from coordinator.clientlimits import HEAD_BYTES, HEADER_BYTES, HEADERS, LINE_BYTES, LINGER_S, SEND_S, ClientLimits
from coordinator.http.errors import ApiError

SLOW_HEAD = ApiError(408, "slow_request", "the headers did not come in time; send the request at once", outcome="retry")
LARGE_HEAD = ApiError(431, "head_too_large", f"URL and headers are more than {HEAD_BYTES} bytes; send fewer")
LONG_LINE = ApiError(431, "head_too_large", f"the URL or a header is more than {LINE_BYTES} bytes long; send less")


class Connection(web.RequestHandler):
    """`begin` is told that a request is being served; `look` is called now and then and ends what takes too long.
    `left` is called once, when the connection is gone."""

    __slots__ = ("_body", "_head_bytes", "_head_since", "_left", "_limits", "_serving", "_stuck_since")

    def __init__(
        self, server: web.Server, limits: ClientLimits, left: Callable[[], None], *, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=limits.idle_seconds,
            access_log=None,  # type: ignore[arg-type] # None is how aiohttp's own runner is told, too
            max_line_size=LINE_BYTES,
            max_field_size=HEADER_BYTES,
            max_headers=HEADERS,
            lingering_time=LINGER_S,
        )
        self._limits = limits
        self._left = left
        self._serving = False
        self._body: StreamReader = EMPTY_PAYLOAD
        """Of the last request whose head is complete: until it has come, what comes is no head."""
        self._head_since: float | None = None
        """When the head that is not complete yet began, or could be looked at."""
        self._head_bytes = 0
        self._stuck_since: float | None = None
        """Since when the client takes nothing of what is sent to it."""

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._head_since = self._loop.time()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._left()

    def data_received(self, data: bytes) -> None:
        if data and self._body.is_eof():
            self._head_bytes += len(data)
            if self._head_since is None:
                self._head_since = self._loop.time()
        super().data_received(data)
        if self._messages:
            # Heads that are complete. What may have come of another one behind them counts with its next bytes.
            _, self._body = self._messages[-1]
            self._head_since, self._head_bytes = None, 0

    def pause_writing(self) -> None:
        self._stuck_since = self._loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stuck_since = None
        super().resume_writing()

    # --- bounds ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._serving = True

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Until its answer is sent, which may be held back (`shedding`), a request is being served."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._serving = False
            if self._head_since is not None:
                self._head_since = self._loop.time()

    def look(self, now: float) -> None:
        if self._stuck_since is not None and now - self._stuck_since > SEND_S and self.transport is not None:
            self.transport.abort()
        elif self._serving or self._messages:
            return  # the next request has time: an answer to it here would be taken for this one's
        elif self._head_bytes > HEAD_BYTES:
            self._refuse(LARGE_HEAD)
        elif self._head_since is not None and now - self._head_since > self._limits.header_seconds:
            self._refuse(SLOW_HEAD)

    def _refuse(self, error: ApiError) -> None:
        """There is no request to answer, so the bytes are written as they are. Silence is not answered at all."""
        if self.transport is not None and self._head_bytes:
            self.transport.write(plain_refusal(error))
        self.force_close()

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A body that cannot be unpacked is its client's mistake, also where nobody wanted it."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError | ContentEncodingError):
            super().log_exception(*args, **kw)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What aiohttp cannot read as a request, in the one error shape; a client's mistake is not logged."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun and cannot become another one")
        if status >= 500:
            self.log_exception("a request from %s failed", request.remote, exc_info=exc)
            error = ApiError(500, "internal", "a bug in this node; its log has the trace", outcome="unknown")
        elif isinstance(exc, LineTooLong):
            error = LONG_LINE
        else:
            told = (message or "").strip().partition("\n")[0][:200]
            error = ApiError(400, "bad_request", f"this is not a valid HTTP request: {told}")
        response = web.Response(
            status=error.status, body=_body(error), content_type="application/json", headers={"Server": "holdfast"}
        )
        response.force_close()
        return response


def plain_refusal(error: ApiError) -> bytes:
    """A whole answer as bytes, for where there is no request."""
    body = _body(error)
    lines = [
        f"HTTP/1.1 {error.status} {error.code}",
        "Content-Type: application/json; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "Server: holdfast",
        *(f"{name}: {value}" for name, value in error.headers().items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _body(error: ApiError) -> bytes:
    shown: dict[str, Any] = error.body()
    return (json.dumps(shown, ensure_ascii=False) + "\n").encode(errors="replace")
