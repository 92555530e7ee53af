"""Bytes on the wire: a relay in front of a port that counts what passes, used for a short while beside the measurement.

What is counted is what TCP carries, headers of HTTP and gRPC included, those of TCP and IP not.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from bench.wire import Address

PIECE = 1 << 16


class Tap:
    """`with Tap(address) as tap:` and then talk to `tap.address`."""

    def __init__(self, to: Address) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: Address = ("127.0.0.1", self._listener.getsockname()[1])
        self.sent_bytes = 0
        """By the clients."""
        self.answered_bytes = 0
        self._counting = threading.Lock()
        self._open: list[socket.socket] = []

    def __enter__(self) -> Tap:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open += [near, far]
                threading.Thread(target=self._relay, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._relay, args=(far, near, False), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, sent: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                with self._counting:
                    if sent:
                        self.sent_bytes += len(piece)
                    else:
                        self.answered_bytes += len(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def a(self, operations: float) -> dict[str, float]:
        """Bytes a piece of work."""
        return {
            "bytes_sent_each": round(self.sent_bytes / operations, 2),
            "bytes_answered_each": round(self.answered_bytes / operations, 2),
        }
