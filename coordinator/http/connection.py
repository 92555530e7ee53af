"""One client's connection: aiohttp's own, with an eye on how long its head takes and whether its answers are taken.

Requests that came whole (`whole`) it answers itself. It does so only while aiohttp has nothing of this connection: no
request that is not answered yet, no piece of one, and nothing after which it hangs up. So one of the two has all that
comes, and answers have the order of the requests. While one is answered here, what comes behind it waits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import ContentEncodingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD

from coordinator.clientlimits import (
    EARLY_REQUEST_BYTES,
    HEAD_BYTES,
    HEADER_BYTES,
    HEADERS,
    LINE_BYTES,
    LINGER_S,
    SEND_S,
    ClientLimits,
)
from coordinator.http.early import EARLY, UNTAKEN, Passed
from coordinator.http.errors import ApiError
from coordinator.http.fullness import Fullness
from coordinator.http.shedding import Held
from coordinator.http.whole import (
    ANSWERS,
    BODY_MOST,
    HEAD_KEPT_MOST,
    HEAD_MOST,
    PIECES_MOST,
    Answers,
    Fields,
    Head,
    Whole,
    keep,
    read_head,
    written,
)

SLOW_HEAD = ApiError(408, "slow_request", "the headers did not come in time; send the request at once", outcome="retry")
LARGE_HEAD = ApiError(431, "head_too_large", f"URL and headers are more than {HEAD_BYTES} bytes; send fewer")
LONG_LINE = ApiError(431, "head_too_large", f"the URL or a header is more than {LINE_BYTES} bytes long; send less")


class Connection(web.RequestHandler):
    """`begin` is told that a request is being served; `look` is called now and then and ends what takes too long.
    `left` is called once, when the connection is gone."""

    __slots__ = (
        "_answering", "_answers", "_app", "_behind", "_body", "_due", "_ending", "_fields", "_full", "_fullness",
        "_head_bytes", "_head_since", "_heads", "_idle_since", "_left", "_limits", "_passed", "_pieces", "_serving",
        "_stuck_since", "_unanswered", "_wire", "place",
    )  # fmt: skip

    def __init__(
        self,
        server: web.Server,
        app: web.Application,
        limits: ClientLimits,
        left: Callable[[], None],
        place: str = "",
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type] # None is how aiohttp's own runner is told, too
            max_line_size=LINE_BYTES,
            max_field_size=HEADER_BYTES,
            max_headers=HEADERS,
            lingering_time=LINGER_S,
        )
        self._app = app
        self._answers = app[ANSWERS] if ANSWERS in app else Answers({})
        self._limits = limits
        self._left, self.place = left, place
        self._serving = False
        self._ending = False
        """Nothing more is taken from it."""
        self._idle_since = loop.time()
        self._body: StreamReader = EMPTY_PAYLOAD
        """Of the last request whose head is complete: until it has come, what comes is no head."""
        self._head_since: float | None = None
        """When the head that is not complete yet began, or could be looked at."""
        self._head_bytes = 0
        self._stuck_since: float | None = None
        """Since when the client takes nothing of what is sent to it, or could have taken the last of it."""
        self._wire: asyncio.Transport | None = None
        """Also of one that is closed already, but has something to send."""
        self._unanswered = 0
        """Requests that aiohttp has."""
        self._due: int | None = 0
        """Bytes that are to come of the last of them; None once it cannot be told where it ends."""
        self._answering: asyncio.Task[None] | None = None
        self._heads: dict[bytes, Head] = {}
        self._fields: dict[bytes, Fields] = {}
        self._behind = bytearray()
        """What came while a request was answered here, or of one whose body is not complete yet."""
        self._pieces = 0
        """In how many reads that came."""
        self._full = False
        """So much came that nothing more is read."""
        self._passed, self._fullness = Passed(), Fullness()

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._head_since = self._loop.time()
        self._wire = cast(asyncio.Transport, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._answering is not None:
            self._answering.cancel()
        self._behind, self._passed = bytearray(), Passed()
        self._note_early()
        self._note_untaken(0)
        self._left()

    def data_received(self, data: bytes) -> None:
        if self._answering is None and not self._behind:
            if not self._is_free or not self._take(data):
                self._pass_on(data)
                return
        else:
            self._behind += data
            self._pieces += 1
            if self._answering is None:
                self._go_on()
        if self._answering is not None and len(self._behind) > BODY_MOST and self.transport is not None:
            self._full = True
            self.transport.pause_reading()
        if self._behind:
            self._note_early()

    # --- what came whole ------------------------------------------------------------------------------------------

    @property
    def _is_free(self) -> bool:
        """Aiohttp has nothing of this connection, and will not end it."""
        return not (self._due != 0 or self._unanswered or self._ending or self._stuck_since) and self._body.is_eof()

    def _take(self, data: bytes) -> bool:
        """The first request of it; False if that is aiohttp's, and with it all of `data`."""
        end = data.find(b"\r\n\r\n", 0, HEAD_MOST)
        head = self._head_of(data[: end + 2]) if end > 0 else None
        if head is None:
            return False
        stop = end + 4 + (head.fields.content_length or 0)
        if stop <= len(data):
            self._answering = self._loop.create_task(self._answer(head, data[end + 4 : stop]))
            self._behind += data[stop:]
        elif self._pieces < PIECES_MOST:
            self._behind += data
        else:
            return False
        self._head_since, self._head_bytes = None, 0
        return True

    def _head_of(self, raw: bytes) -> Head | None:
        head = self._heads.get(raw)
        if head is None:
            head = read_head(raw, self._answers, self._fields)
            # What has names in its path is another one each time.
            if head is not None and not head.places and len(raw) <= HEAD_KEPT_MOST:
                keep(self._heads, raw, head)
        return head

    async def _answer(self, head: Head, body: bytes) -> None:
        try:
            answer = await head.answer(Whole(self._app, self, head, body))
            if self.transport is not None:
                self.transport.write(written(answer))
            if isinstance(answer, Held):
                await answer.hold()
            self._answering = None
            self._answered()
            self._go_on()
        except asyncio.CancelledError:
            self._answering = None
            self.force_close()  # whoever it was: nobody would send the answer any more
            raise
        except Exception as error:  # noqa: BLE001 - of a handler none comes out: it is this node's, and the client hears no more
            self.log_exception("an answer to %s could not be sent", head.path, exc_info=error)
            self._answering = None
            self.force_close()

    def _go_on(self) -> None:
        """With what came meanwhile, if anything did."""
        data, self._behind = bytes(self._behind), bytearray()
        if data and (not self._is_free or not self._take(data)):
            self._pass_on(data)
        if not self._behind:
            self._pieces = 0
        # Not before there is room: or each of many small requests that came together would let in as much again.
        if self._full and (self._answering is None or len(self._behind) <= BODY_MOST):
            self._full = False
            if self.transport is not None and not (self._reading_paused or self._buffer_paused):
                self.transport.resume_reading()

    # --- what came before its turn --------------------------------------------------------------------------------

    def _note_early(self) -> None:
        early, size = self._app.get(EARLY), len(self._behind) + self._passed.size
        if early is not None and (size or early.held):
            early.note(self, size)

    def cut_off(self) -> None:
        self._ending = True
        if self._wire is not None:
            self._loop.call_soon(self._wire.abort)  # it may be writing just now

    # --- what is aiohttp's ----------------------------------------------------------------------------------------

    def _pass_on(self, data: bytes) -> None:
        early, due = self._unanswered and self._body.is_eof(), self._due
        if data and self._body.is_eof():
            self._head_bytes += len(data)
            if self._head_since is None:
                self._head_since = self._loop.time()
        known = len(self._messages)
        super().data_received(data)
        new = len(self._messages) - known
        self._due = self._due_after(data, new)
        self._unanswered += new
        # What a WebSocket sends has its own bounds.
        counts = early or self._unanswered > 1 or (self._due is None and (new or due is not None))
        if self._payload_parser is None and counts:
            self._passed.add(len(data) + EARLY_REQUEST_BYTES * max(0, new - (not early)), new)
            self._note_early()
        else:
            self._passed.add(0, new)
        if self._messages:
            # Heads that are complete. What may have come of another one behind them counts with its next bytes.
            _, self._body = self._messages[-1]
            self._head_since, self._head_bytes = None, 0

    def _due_after(self, data: bytes, new: int) -> int | None:
        if not data or self._due is None:
            return self._due
        if self._due:
            left = self._due - len(data)
        elif new == 1 and data[:1].isalpha():
            message: Any = self._messages[-1][0]
            if getattr(message, "chunked", True) or message.upgrade or "Transfer-Encoding" in message.headers:
                return None
            left = data.find(b"\r\n\r\n") + 4 + int(message.headers.get("Content-Length", 0)) - len(data)
        else:
            left = -1
        return left if left >= 0 else None

    def pause_writing(self) -> None:
        self._stuck_since = self._loop.time()
        super().pause_writing()
        self._note_untaken()

    def resume_writing(self) -> None:
        self._stuck_since = None if self.transport is not None else self._loop.time()
        super().resume_writing()
        self._note_untaken(0)

    def _note_untaken(self, size: int | None = None) -> None:
        untaken = self._app.get(UNTAKEN)
        if untaken is not None and self._wire is not None:
            untaken.note(self, self._wire.get_write_buffer_size() if size is None else size)

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
            self._unanswered -= 1
            self._passed.answered()
            self._ending = self._ending or not resp.keep_alive
            self._answered()

    def _answered(self) -> None:
        self._note_early()
        self._fullness.ended()
        self._serving = False
        self._idle_since = self._loop.time()
        if self._head_since is not None:
            self._head_since = self._idle_since

    def close(self) -> None:
        self._ending = True
        super().close()

    def force_close(self) -> None:
        """What was written already is sent, as long as its client takes it."""
        self._ending = True
        if self._stuck_since is None:
            self._stuck_since = self._loop.time()
        super().force_close()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        self._ending = True
        if self._answering is not None:
            await asyncio.wait((self._answering,), timeout=timeout)
        if self._answering is not None:
            self._answering.cancel()
        await super().shutdown(timeout)

    def _process_keepalive(self) -> None:
        """`look` ends what is idle: of most requests aiohttp does not know."""

    def look(self, now: float) -> bool:
        """Whether it was ended."""
        if self._stuck_since is not None:
            self._note_untaken()
            if now - self._stuck_since <= SEND_S or self._wire is None:
                return False
            self._wire.abort()  # closing it would wait until the client has taken what it does not take
        elif self._serving or self._messages or self._answering is not None:
            # The next request has time: an answer to it here would be taken for this one's.
            full = self._full or self._buffer_paused or (self._reading_paused and self._unanswered > 1)
            if not self._fullness.is_too_long(now, full):
                return False
            self.cut_off()
        elif self._behind:
            data, self._behind, self._pieces = bytes(self._behind), bytearray(), 0
            self._pass_on(data)  # its body takes its time
            return False
        elif self._head_bytes > HEAD_BYTES:
            self._refuse(LARGE_HEAD)
        elif self._head_since is not None and now - self._head_since > self._limits.header_seconds:
            self._refuse(SLOW_HEAD)
        elif self._head_since is None and now - self._idle_since > self._limits.idle_seconds:
            self.force_close()
        else:
            return False
        return True

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
