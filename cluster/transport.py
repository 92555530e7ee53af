"""Links to the other nodes over TCP, optionally TLS: at most one a peer, authenticated, bounded, FIFO while it lasts.

The node with the greater id dials, so that two nodes rarely make two links at once. The other one dials too once it
has been without a link for a while: then the peer may not know its address yet (a node that joins), or cannot reach it.
A newer authenticated link replaces an older one, as the peer may have restarted without the older one noticing.

Messages are msgpack of a closed table (`cluster.messages`); nothing here can unpickle (H13).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from cluster.credentials import Credentials
from cluster.frames import FrameError, LinkGuards, encode
from cluster.handshake import Acceptor, Dialer
from cluster.link import Link, LinkBounds
from cluster.listener import Listener, TransportError, split_address
from cluster.options import Limits, Timing
from cluster.ports import Message, Random, Receiver
from cluster.quiet import Quiet
from cluster.tls import peer_ssl_contexts, tls_refusal

__all__ = ["SocketTransport", "TransportError", "peer_ssl_contexts"]

HANDSHAKE_SECONDS = 5.0
BACKOFF_MIN_SECONDS = 0.05
BACKOFF_MAX_SECONDS = 2.0
STABLE_SECONDS = 2.0
"""A link that lasted this long ends the back-off: one that fails at once must not be redialed at once for ever."""
PATIENCE_SECONDS = 1.0
"""How long the node with the lesser id waits to be dialed before it dials itself."""


class QuietLog:
    """Logs the first complaint of each (address, kind) in a minute."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._quiet = Quiet(now)

    def __call__(self, address: str, kind: str, text: str) -> None:
        kept_back = self._quiet.kept_back(address, kind)
        if kept_back is None:
            return
        more = f" ({kept_back} more like it in between)" if kept_back else ""
        self._log.warning("peer link %s: %s: %s%s", address, kind, text, more)


class _Peer:
    """A node that may be linked: where it is, its link, and the task that dials it."""

    def __init__(self, node_id: str, address: str) -> None:
        self.id = node_id
        self.address = address
        self.unlinked = asyncio.Event()
        self.unlinked.set()
        self.task: asyncio.Task[None] | None = None


def _check_pair(server: ssl.SSLContext | None, client: ssl.SSLContext | None) -> None:
    if (server is None) != (client is None):
        raise TransportError("TLS on the peer port needs both contexts: see peer_ssl_contexts")


class SocketTransport:
    """Implements `cluster.ports.Transport` on one event loop. All methods are called on its thread.

    No callback comes from inside `set_peers`, `send` or `close`, and none after `close`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: str,
        cluster_id: str,
        listen: str,
        secret: bytes,
        timing: Timing,
        limits: Limits,
        incarnation: int,
        ssl_server: ssl.SSLContext | None = None,
        ssl_client: ssl.SSLContext | None = None,
        *,
        log: logging.Logger,
        random: Random,
        previous_secret: bytes | None = None,
        joining: bool = False,
        idle_seconds: float | None = None,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        guards: LinkGuards | None = None,
    ) -> None:
        """`joining`: a new node knows no ids; until the first set_peers that names one, whoever proves the secret
        may link. `idle_seconds`: default ten times `timing.election_min`. `guards`: tests only."""
        _check_pair(ssl_server, ssl_client)
        self._loop = loop
        self._node_id = node_id
        self._removed: set[str] = set()
        self._credentials = Credentials(
            node_id, cluster_id, secret, incarnation, timing, self._allowed, self._removed.__contains__, previous_secret
        )
        self._credentials.check()
        self._limits = limits
        idle = idle_seconds if idle_seconds is not None else 10 * timing.election_min
        self._bounds = LinkBounds(
            limits.frame_bytes, limits.link_buffer_bytes, idle, ssl_server is not None, guards or LinkGuards()
        )
        self._ssl_server, self._ssl_client = ssl_server, ssl_client
        self._complain = QuietLog(log, loop.time)
        self._random = random
        self._joining = joining
        self._handshake_seconds = handshake_seconds
        self._listener = Listener(loop, listen, self._accept, self._complain)
        self._peers: dict[str, _Peer] = {}
        self._links: dict[str, Link] = {}
        """The link of each peer that the receiver was told of; it may be closing."""
        self._receiver: Receiver | None = None
        self._batch_end: Callable[[], None] | None = None
        self._binding: asyncio.Task[None] | None = None
        self._closed = False

    # --- ports.Transport --------------------------------------------------------------------------------------

    def start(self, receiver: Receiver) -> None:
        if self._receiver is not None or self._closed:
            raise TransportError("a transport starts once: make a new one")
        self._receiver = receiver
        self._batch_end = getattr(receiver, "on_batch_end", None)
        self._binding = self._loop.create_task(self._listener.bind())
        for peer in self._peers.values():
            self._begin_dialing(peer)

    async def ready(self) -> None:
        """Returns when the port is bound; TransportError, which says why and what to do, if it cannot be."""
        if self._binding is None:
            raise TransportError("call start() before ready()")
        await asyncio.shield(self._binding)

    def set_peers(self, peers: Mapping[str, str]) -> None:
        wanted = {node_id: address for node_id, address in peers.items() if node_id != self._node_id}
        for node_id, address in wanted.items():
            split_address(address, f"the peer address of {node_id}")
        for node_id in self._peers.keys() - wanted.keys():
            self._forget(self._peers.pop(node_id))
        for node_id, address in wanted.items():
            self._removed.discard(node_id)
            known = self._peers.get(node_id)
            if known is None:
                self._admit(_Peer(node_id, address))
            else:
                known.address = address  # the next attempt uses it; a link that stands is still to that node
        self._joining = self._joining and not wanted
        for node_id, link in self._links.items():
            if not self._allowed(node_id):
                link.close()

    def send(self, peer: str, message: Message) -> bool:
        link = self._links.get(peer)
        return link is not None and not link.closing and self.send_encoded(peer, encode(message))

    def send_encoded(self, peer: str, body: bytes) -> bool:
        """`send` for what `encode` gave: one body, encoded once, for several peers."""
        if len(body) > self._limits.frame_bytes:
            raise FrameError("oversize", f"a message of {len(body)} bytes is over limits.frame_bytes")
        link = self._links.get(peer)
        return link is not None and link.send(body)

    def buffered_bytes(self, peer: str) -> int:
        link = self._links.get(peer)
        return link.buffered_bytes() if link is not None else 0

    def close(self) -> None:
        self._closed = True
        for peer in self._peers.values():
            if peer.task is not None:
                peer.task.cancel()
        if self._binding is not None:
            self._binding.cancel()
        self._listener.close()
        for link in self._links.values():
            link.close()

    async def wait_closed(self) -> None:
        """After `close`: the port is free again and no task is left."""
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.wait_closed()

    def renew(
        self, contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None, secret: bytes, previous_secret: bytes | None
    ) -> None:
        """For links made from now on: other certificates, another secret. Those that stand are proven and stay."""
        if (contexts is None) != (self._ssl_server is None):
            raise TransportError("TLS cannot be switched on or off while the node runs: restart it")
        renewed = replace(self._credentials, secret=secret, previous_secret=previous_secret)
        renewed.check()
        self._credentials = renewed
        self._ssl_server, self._ssl_client = contexts or (None, None)

    # --- for status and tests ---------------------------------------------------------------------------------

    @property
    def bound(self) -> str:
        """`host:port` that is listened on, once ready."""
        return self._listener.bound

    @property
    def half_open(self) -> int:
        """Inbound connections that have not proved themselves yet."""
        return len(self._listener.half_open)

    def incarnation(self, peer: str) -> int | None:
        """Which life of the peer the link is to; None without a link."""
        link = self._links.get(peer)
        return link.established.incarnation if link is not None and link.established is not None else None

    # --- LinkOwner --------------------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        receiver, peer = self._receiver, link.peer
        if receiver is None or peer is None or self._closed:
            link.abort()
            return
        older = self._links.pop(peer, None)
        if older is not None:
            older.abort()
            receiver.on_disconnected(peer)
        if not self._welcome(peer):  # the receiver may have changed its mind just now
            link.abort()
            return
        self._links[peer] = link
        if peer in self._peers:
            self._peers[peer].unlinked.clear()
        receiver.on_connected(peer)

    def link_down(self, link: Link) -> None:
        peer = link.peer
        if peer is None or self._links.get(peer) is not link:
            return
        del self._links[peer]
        if peer in self._peers:
            self._peers[peer].unlinked.set()
        if self._receiver is not None and not self._closed:
            self._receiver.on_disconnected(peer)

    def link_message(self, link: Link, message: Message) -> None:
        if self._receiver is not None and link.peer is not None:
            self._receiver.on_message(link.peer, message)

    def link_batch_end(self) -> None:
        if self._batch_end is not None and not self._closed:
            self._batch_end()

    def link_refused(self, link: Link, kind: str, text: str) -> None:
        self._complain(link.address, kind, text)

    # --- membership -------------------------------------------------------------------------------------------

    def _allowed(self, node_id: str) -> bool:
        return node_id in self._peers or (self._joining and node_id not in self._removed)

    def _welcome(self, node_id: str) -> bool:
        return not self._closed and self._allowed(node_id)

    def _admit(self, peer: _Peer) -> None:
        self._peers[peer.id] = peer
        if peer.id in self._links:
            peer.unlinked.clear()
        if self._receiver is not None and not self._closed:
            self._begin_dialing(peer)

    def _forget(self, peer: _Peer) -> None:
        self._removed.add(peer.id)
        if peer.task is not None:
            peer.task.cancel()

    # --- connections ------------------------------------------------------------------------------------------

    def _begin_dialing(self, peer: _Peer) -> None:
        peer.task = self._loop.create_task(self._keep_linked(peer))

    async def _keep_linked(self, peer: _Peer) -> None:
        failures = 0
        while True:
            await peer.unlinked.wait()
            await asyncio.sleep(self._pause(peer, failures))
            if not peer.unlinked.is_set():
                continue
            began = self._loop.time()
            if await self._dial(peer, failures):
                await peer.unlinked.wait()
                failures = 0 if self._loop.time() - began >= STABLE_SECONDS else failures + 1
            else:
                failures += 1

    def _pause(self, peer: _Peer, failures: int) -> float:
        patience = PATIENCE_SECONDS if self._node_id < peer.id else 0.0
        if not failures:
            return patience
        longest = min(BACKOFF_MAX_SECONDS, BACKOFF_MIN_SECONDS * 2.0 ** min(failures, 16))
        return patience + max(BACKOFF_MIN_SECONDS, longest * (0.5 + self._random.random() / 2))

    async def _dial(self, peer: _Peer, failures: int) -> bool:
        host, port = split_address(peer.address, f"the peer address of {peer.id}")
        dialer = Dialer(self._credentials, peer.id, attempt=failures)
        link = Link(self._loop, self, dialer, self._bounds, f"{peer.id} at {peer.address}")
        timeout = self._handshake_seconds if self._ssl_client is not None else None
        connecting = self._loop.create_connection(
            lambda: link, host, port, ssl=self._ssl_client, ssl_handshake_timeout=timeout
        )
        return await self._authenticate(link, connecting, inbound=False)

    async def _accept(self, connection: socket.socket, host: str) -> None:
        link = Link(self._loop, self, Acceptor(self._credentials), self._bounds, host)
        timeout = self._handshake_seconds if self._ssl_server is not None else None
        connecting = self._loop.connect_accepted_socket(
            lambda: link, connection, ssl=self._ssl_server, ssl_handshake_timeout=timeout
        )
        await self._authenticate(link, connecting, inbound=True)

    async def _authenticate(self, link: Link, connecting: Awaitable[object], *, inbound: bool) -> bool:
        """True once the link is up. Whatever happens instead, nothing of it is left after the deadline."""
        settled = False
        try:
            async with asyncio.timeout(self._handshake_seconds):
                await connecting
                settled = await link.settled
        except TimeoutError:
            self._complain(link.address, "timeout", f"no hand-shake within {self._handshake_seconds:g} s")
        except OSError as error:
            # Inbound the connection stands already, so only TLS can fail; outbound also the address and the name.
            if inbound or isinstance(error, ssl.SSLError):
                self._complain(link.address, *tls_refusal(error))
            else:
                self._complain(link.address, "unreachable", str(error) or type(error).__name__)
        finally:
            if not settled and not link.closing:  # a link that closes is still telling why
                link.abort()
        return settled
