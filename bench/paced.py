"""Requests at a fixed rate whatever becomes of the earlier ones, from a process of its own: how long each took.

It waits with select, whose time is in microseconds: an event loop's is in milliseconds, which is as long as what is
measured. How late it sent what was due is told beside the answer's times, for a busy host makes both late. HTTP/1.1 for
ours; HTTP/2 with gRPC for etcd, so that its JSON gateway is not in the way.
"""

from __future__ import annotations

import gc
import multiprocessing
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from bench import machine
from bench.generators import grpc_frame
from bench.rounds import Figures
from bench.wire import Address, http_ends

CONNECTIONS = 64
WARM_S = 0.2
ANSWER_S = 20.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


class Speech(Protocol):
    """How one connection speaks: one request under way."""

    def hello(self) -> bytes: ...

    def ask(self) -> bytes: ...

    def hear(self, received: bytearray) -> tuple[bool, bytes]:
        """Takes what is complete; whether the answer is, and what must be said at once."""


class Http:
    def __init__(self, made: bytes) -> None:
        self._made = made

    def hello(self) -> bytes:
        return b""

    def ask(self) -> bytes:
        return self._made

    def hear(self, received: bytearray) -> tuple[bool, bytes]:
        end = http_ends(received)
        if not end:
            return False, b""
        if received[9:12] != b"200":
            raise RuntimeError(f"not answered: {bytes(received[:300])!r}")
        del received[:end]
        return True, b""


class Grpc:
    """The least of HTTP/2 that one unary call after the other needs. Headers are literal, so nothing is remembered."""

    def __init__(self, method: str, message: bytes) -> None:
        fields = {
            ":method": "POST", ":scheme": "http", ":path": f"/{method}", ":authority": "127.0.0.1",
            "content-type": "application/grpc", "te": "trailers",
        }  # fmt: skip
        coded = b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())
        self._headers, self._content = coded, grpc_frame(message)
        self._stream = -1
        self._answered = 0

    def hello(self) -> bytes:
        wide = struct.pack(">I", (1 << 31) - 1 - 65535)
        return PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(WINDOW_UPDATE, 0, 0, wide)

    def ask(self) -> bytes:
        self._stream += 2
        self._answered = 0
        asked = _frame(HEADERS, END_HEADERS, self._stream, self._headers)
        return asked + _frame(DATA, END_STREAM, self._stream, self._content)

    def hear(self, received: bytearray) -> tuple[bool, bytes]:
        over, replies = False, b""
        while len(received) >= 9 and len(received) >= 9 + (size := int.from_bytes(received[:3], "big")):
            kind, flags, stream = received[3], received[4], int.from_bytes(received[5:9], "big")
            content = bytes(received[9 : 9 + size])
            del received[: 9 + size]
            if kind in (RESET, GOAWAY):
                raise RuntimeError(f"etcd ended the call: frame {kind}")
            if kind == DATA:
                self._answered += size
            if kind in (SETTINGS, PING) and not flags & ACK:
                replies += _frame(kind, ACK, 0, content if kind == PING else b"")
            over = over or (stream == self._stream and kind in (DATA, HEADERS) and bool(flags & END_STREAM))
        if over and not self._answered:
            raise RuntimeError("etcd answered with an error")
        return over, replies


def _text(value: str) -> bytes:
    """A string of HPACK shorter than 127 bytes, as it is."""
    return bytes([len(value)]) + value.encode()


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


# --- the loop ---------------------------------------------------------------------------------------------------------


@dataclass
class _Line:
    connection: socket.socket
    speech: Speech
    received: bytearray
    asked: float = 0.0


def _open(address: Address, new: Callable[[], Speech]) -> _Line:
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line = _Line(connection, new(), bytearray())
    connection.sendall(line.speech.hello())
    return line


class _Pace:
    """Sends what is due while answers come in.

    A request that is due while every connection waits for an answer waits too: that is the server's time and counts as
    such. That this process woke up late is not, and is told apart.
    """

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = {line.connection.fileno(): line for line in lines}
        self._idle = lines
        self._idle_since = 0.0
        self.taken: list[float] = []
        self.late: list[float] = []

    def run(self, per_second: float, count: int) -> None:
        start = time.perf_counter() + 0.05
        sent = 0
        while len(self.taken) < count:
            now, due = time.perf_counter(), start + sent / per_second
            if now > start + count / per_second + ANSWER_S:
                raise TimeoutError(f"{count - len(self.taken)} of {count} requests were not answered")
            if sent == count or not self._idle:
                self._read(1.0)
            elif now < due:
                self._read(due - now)
            else:
                self._send(now, due)
                sent += 1
                self._read(0.0)

    def _send(self, now: float, due: float) -> None:
        line = self._idle.pop()
        line.connection.sendall(line.speech.ask())
        could = max(due, self._idle_since)
        self.late.append(now - could)
        line.asked = now - (could - due)

    def _read(self, wait_s: float) -> None:
        for number in select.select(list(self._lines), [], [], wait_s)[0]:
            line = self._lines[number]
            piece = line.connection.recv(1 << 18)
            if not piece:
                raise RuntimeError("the connection was closed")
            line.received += piece
            over, replies = line.speech.hear(line.received)
            if replies:
                line.connection.sendall(replies)
            if over:
                now = time.perf_counter()
                self.taken.append(now - line.asked)
                if not self._idle:
                    self._idle_since = now
                self._idle.append(line)


def paced(address: Address, new: Callable[[], Speech], per_second: float, seconds: float) -> Figures:
    """In this process. All connections are open before the first request is due."""
    lines = [_open(address, new) for _ in range(CONNECTIONS)]
    pace = _Pace(list(lines))
    warm = int(per_second * WARM_S)
    count = int(per_second * seconds) + warm
    try:
        pace.run(per_second, count)
    finally:
        for line in lines:
            line.connection.close()
    # The first few find cold connections; answers come nearly in the order of the questions.
    measured, lateness = sorted(pace.taken[warm:]), sorted(pace.late[warm:])
    return {
        "p50_ms": machine.percentile(measured, 0.50) * 1e3,
        "p99_ms": machine.percentile(measured, 0.99) * 1e3,
        "longest_ms": measured[-1] * 1e3,
        "late_p50_ms": machine.percentile(lateness, 0.50) * 1e3,
        "late_p99_ms": machine.percentile(lateness, 0.99) * 1e3,
        "offered_per_second": per_second,
        "operations": count,
    }


@dataclass(frozen=True)
class Asked:
    """One round, as it is handed to the process."""

    address: Address
    speech: Callable[..., Speech]
    arguments: tuple[str | bytes, ...]
    per_second: float
    seconds: float

    def new_speech(self) -> Speech:
        return self.speech(*self.arguments)


class Pacer:
    """The process. Python's own pauses for garbage are off in it: it lives for rounds of a second."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()

    def run(self, asked: Asked) -> Figures:
        self._pipe.send(asked)
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        figures: Figures = answer
        return figures

    def close(self) -> None:
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection) -> None:
    gc.disable()
    while True:
        asked: Asked = pipe.recv()
        try:
            pipe.send(paced(asked.address, asked.new_speech, asked.per_second, asked.seconds))
        except (RuntimeError, OSError) as error:
            pipe.send(f"{asked.address}: {error!r}")
