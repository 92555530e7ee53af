"""One connection to one peer: the hand-shake first, then sealed frames both ways, until something is wrong.

Which connections exist, and which of two is kept, is decided in `cluster.transport`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, cast

from cluster.frames import FrameError, FrameReader, LinkGuards, LinkSession, decode
from cluster.handshake import Dialer, Established, Handshake, HandshakeRefused
from cluster.ports import Message
from cluster.tls import certificate_name, names_node, tls_refusal

FLUSH_SECONDS = 1.0
"""What a closing link has to send its last bytes in."""


class LinkOwner(Protocol):
    def link_up(self, link: Link) -> None:
        """Authenticated. The link may be sent to from here on."""

    def link_down(self, link: Link) -> None:
        """Once, at the end of every connection that was up."""

    def link_message(self, link: Link, message: Message) -> None: ...

    def link_batch_end(self) -> None:
        """Everything of one read was delivered."""

    def link_refused(self, link: Link, kind: str, text: str) -> None:
        """What was wrong, for the log. The link is closed, nothing of the bad bytes was delivered."""


@dataclass(frozen=True, slots=True)
class LinkBounds:
    frame_bytes: int
    buffer_bytes: int
    idle_seconds: float
    tls: bool = False
    guards: LinkGuards = field(default_factory=LinkGuards)


class Link(asyncio.Protocol):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: LinkOwner,
        handshake: Handshake,
        bounds: LinkBounds,
        address: str,
    ) -> None:
        self.address = address
        """For the log: the other end, without the port of an inbound connection, which changes with each."""
        self.peer: str | None = None
        self.closing = False
        self.settled: asyncio.Future[bool] = loop.create_future()
        """Whether the hand-shake ended well, as soon as that is known."""
        self.established: Established | None = None
        self._loop = loop
        self._owner = owner
        self._handshake: Handshake | None = handshake
        self._bounds = bounds
        self._transport: asyncio.Transport | None = None
        self._session: LinkSession | None = None
        self._reader = FrameReader(bounds.frame_bytes)
        self._heard = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        handshake = self._handshake
        if self.closing or handshake is None:
            self._transport.abort()
            return
        # asyncio's own back-pressure would only call pause_writing, which nobody needs: `send` has its own bound.
        self._transport.set_write_buffer_limits(high=2 * self._bounds.buffer_bytes + self._bounds.frame_bytes)
        _tune(transport.get_extra_info("socket"))
        try:
            if isinstance(handshake, Dialer):
                self._check_certificate(handshake, handshake.target)
        except HandshakeRefused as refusal:
            self._refuse(refusal)
            return
        self._transport.write(handshake.opening())

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self._heard = self._loop.time()
        if self._session is None:
            data = self._shake(data)
        if data:
            self._deliver(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(self._handshake, Dialer) and not self.closing:
            # Inbound it is not worth a line: port scanners and health checks do nothing else.
            if isinstance(exc, ssl.SSLError):  # of TLS 1.3 the last word comes after its hand-shake
                self._owner.link_refused(self, *tls_refusal(exc))
            else:
                reason = exc or "its log says why"
                self._owner.link_refused(self, "closed", f"the other side ended the hand-shake: {reason}")
        self.closing = True
        self._settle(success=False)
        if self._timer is not None:
            self._timer.cancel()
        if self.peer is not None:
            self._owner.link_down(self)

    # --- what the transport does with it ----------------------------------------------------------------------

    def send(self, body: bytes) -> bool:
        if self.closing or self._session is None or self._transport is None:
            return False
        if self._transport.get_write_buffer_size() > self._bounds.buffer_bytes:
            return False
        self._transport.write(self._session.seal(body))
        return True

    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        """What was sent still leaves, if the other end takes it soon. Nothing more is received."""
        if self.closing or self._transport is None:
            self.abort()
            return
        self.closing = True
        self._transport.close()
        self._restart_timer(FLUSH_SECONDS, self.abort)

    def abort(self) -> None:
        self.closing = True
        self._settle(success=False)
        if self._transport is not None:
            self._transport.abort()

    # --- hand-shake -------------------------------------------------------------------------------------------

    def _shake(self, data: bytes) -> bytes:
        """Goes on with the hand-shake; returns the bytes behind its end, which are frames."""
        handshake = self._handshake
        if handshake is None or self._transport is None:
            return b""
        try:
            reply = handshake.feed(data)
            established = handshake.established
            if established is not None:
                self._check_certificate(handshake, established.peer)
        except HandshakeRefused as refusal:
            self._refuse(refusal)
            return b""
        if reply:
            self._transport.write(reply)
        if established is None:
            return b""
        rest = handshake.leftover()
        self._handshake = None
        self.established = established
        self._session = established.session(self._bounds.guards)
        self.peer = established.peer
        self._restart_timer(self._bounds.idle_seconds, self._check_idle)
        self._settle(success=True)
        self._owner.link_up(self)
        return b"" if self.closing else rest

    def _check_certificate(self, handshake: Handshake, node_id: str) -> None:
        cluster_id = handshake.credentials.cluster_id
        if not self._bounds.tls or self._transport is None:
            return
        if not names_node(self._transport.get_extra_info("peercert"), node_id, cluster_id):
            raise HandshakeRefused(
                "tls_certificate",
                f"the certificate at {self.address} is not that of node {node_id!r}: issue it one with the DNS name "
                f"{certificate_name(node_id, cluster_id)}",
            )

    def _refuse(self, refusal: HandshakeRefused) -> None:
        self._owner.link_refused(self, refusal.code, str(refusal))
        if refusal.reply and self._transport is not None:
            self._transport.write(refusal.reply)
        self._settle(success=False)
        self.close()

    def _settle(self, *, success: bool) -> None:
        if not self.settled.done():
            self.settled.set_result(success)

    # --- frames -----------------------------------------------------------------------------------------------

    def _deliver(self, data: bytes) -> None:
        delivered = False
        for message in self._messages(data):
            delivered = True
            self._owner.link_message(self, message)
            if self.closing:  # the receiver closed it, or removed the peer
                break
        if delivered:
            self._owner.link_batch_end()

    def _messages(self, data: bytes) -> Iterator[Message]:
        """Catches only what is wrong with the bytes: an error of the receiver passes by, to the loop's handler."""
        session = self._session
        if session is None:
            return
        try:
            for sequence, mac, sealed in self._reader.feed(data):
                body = session.open(sequence, mac, sealed)
                if body is None:
                    continue
                message = decode(body)
                yield message
        except FrameError as error:
            self._owner.link_refused(self, error.kind, str(error))
            self.abort()

    # --- liveness ---------------------------------------------------------------------------------------------

    def _check_idle(self) -> None:
        quiet = self._loop.time() - self._heard
        if quiet >= self._bounds.idle_seconds:
            self._owner.link_refused(self, "silent", f"nothing was heard for {quiet:.1f} s, the link is taken as dead")
            self.abort()
        else:
            self._restart_timer(self._bounds.idle_seconds - quiet, self._check_idle)

    def _restart_timer(self, delay: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, callback)


def _tune(sock: socket.socket | None) -> None:
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
