"""Fencing of what is no database: files, objects of a store, requests to a service of your own.

Each refuses a token lower than one it has seen, with StaleToken, and accepts the same token again: a hold may have
several things to write. Databases: guards_sql.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import os
import tempfile
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from coordinator.client.errors import Conflict, Invalid, StaleToken

HEADER = "X-Fencing-Token"
UNSAFE = frozenset(("POST", "PUT", "PATCH", "DELETE"))
_DIGITS = 20
_POLL_S = 0.01

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def stale(key: str, token: int, newest: int) -> StaleToken:
    details = {"key": key, "fencing_token": token, "newest_token": newest}
    return StaleToken(
        f"token {token} may not write to {key}, which has seen {newest}: the lock was lost",
        code="stale_token",
        details=details,
    )


class FileGuard:
    """A file that is replaced as a whole, under the token of a lock, on a local file system.

    The newest token is in a file beside it, `<name>.fence`, which is also what writers keep each other out with. The
    token is on disk before the content is: a crash in between loses a write that was never acknowledged, and lets no
    older one in. `timeout`: how long to wait for another writer, who may be stopped in the middle; then Conflict.

    Symbolic links are followed when the guard is made: by whatever name it is written, a file has one fence.
    """

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        self._path, self._timeout_s = Path(os.path.realpath(path)), timeout
        self._fence = self._path.with_name(self._path.name + ".fence")

    def write(self, content: bytes, token: int, *, once: bool = False) -> None:
        with self._fenced() as fence:
            newest = self._newest(fence)
            if token < newest or (once and token == newest):
                raise stale(str(self._path), token, newest)
            if token > newest:
                os.pwrite(fence, f"{token:0{_DIGITS}d}\n".encode(), 0)
                os.fsync(fence)
            self._replace(content)

    def newest(self) -> int:
        """The newest token that has written; 0 when none has."""
        with self._fenced() as fence:
            return self._newest(fence)

    def _newest(self, fence: int) -> int:
        text = os.pread(fence, 64, 0)
        if text and not (len(text) == _DIGITS + 1 and text.strip().isdigit()):
            raise Invalid(f"{self._fence} is damaged; write the lock's newest token into it, as {_DIGITS} digits")
        return int(text or 0)

    def _replace(self, content: bytes) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if self._path.exists():
                    os.fchmod(file.fileno(), self._path.stat().st_mode & 0o7777)
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[int]:
        fence = os.open(self._fence, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            until = time.monotonic() + self._timeout_s
            while True:
                try:
                    fcntl.flock(fence, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        message = f"another writer has {self._fence} for longer than {self._timeout_s:g} s"
                        raise Conflict(message, code="file_busy") from None
                    time.sleep(_POLL_S)
            yield fence
        finally:
            os.close(fence)


class ObjectGuard:
    """An object of a store that can write on condition that the object did not change (an ETag, a generation).

    `load()` tells the token stored with the object (0 if there is none) and its version; `store(content, token,
    version)` writes both if the version is still that, and tells whether it did.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], tuple[int, Any]],
        store: Callable[[bytes, int, Any], bool],
        *,
        attempts: int = 10,
    ) -> None:
        self._name, self._load, self._store, self._attempts = name, load, store, attempts

    def write(self, content: bytes, token: int, *, once: bool = False) -> None:
        for _ in range(self._attempts):
            newest, version = self._load()
            if token < newest or (once and token == newest):
                raise stale(self._name, token, newest)
            if self._store(content, token, version):
                return
        raise Conflict(f"{self._name} changed {self._attempts} times while it was to be written", code="object_busy")


class TokenFloor:
    """The newest token of each key, in memory: forgotten with the process. See `fencing_middleware` for what lasts.

    Of more than `max_keys` it forgets the one not written to for longest, and from then on takes no unknown key with a
    token as low as the forgotten one's: the cluster counts tokens over all keys, so only the oldest holds are refused.
    """

    def __init__(self, max_keys: int = 1_000_000) -> None:
        self._max_keys, self._base = max_keys, 0
        self._newest: OrderedDict[str, int] = OrderedDict()

    def admit(self, key: str, token: int) -> None:
        newest = self._newest.get(key)
        if token < (self._base + 1 if newest is None else newest):
            raise stale(key, token, self._base if newest is None else newest)
        self._newest[key] = token
        self._newest.move_to_end(key)
        if len(self._newest) > self._max_keys:
            self._base = max(self._base, self._newest.popitem(last=False)[1])


def fencing_middleware(
    key: Callable[[web.Request], str | None],
    admit: Callable[[str, int], Awaitable[None] | None] | None = None,
    *,
    header: str = HEADER,
    methods: frozenset[str] = UNSAFE,
) -> Middleware:
    """aiohttp: requests that write must bring the token of the lock they write under, and none lower than seen before.

    `key(request)` names the lock; None: this request needs none. `admit(key, token)` raises StaleToken; the default
    remembers in memory, one that must outlive the process asks a database (`SqlGuard.admit` in the handler's own
    transaction is better still). Requests of one key are handled one after the other, so none with a newer token
    overtakes one that was admitted before.
    """
    check = TokenFloor().admit if admit is None else admit
    turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    @web.middleware
    async def fenced(request: web.Request, handler: Handler) -> web.StreamResponse:
        of = key(request) if request.method in methods else None
        if of is None:
            return await handler(request)
        text = request.headers.get(header)
        if text is None:
            return _refused(428, "token_missing", f"send the fencing token of the lock {of} as {header}")
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS - 1):
            return _refused(400, "token_malformed", f"{header} must be a fencing token, such as 1234")
        turn = turns.setdefault(of, asyncio.Lock())
        async with turn:
            try:
                admitted = check(of, int(text))
                if inspect.isawaitable(admitted):
                    await admitted
            except StaleToken as error:
                return _refused(412, "stale_token", str(error), error.details)
            return await handler(request)

    return fenced


def _refused(status: int, code: str, message: str, details: dict[str, Any] | None = None) -> web.Response:
    error = {"code": code, "message": message, "outcome": "denied", "details": details or {}}
    return web.json_response({"error": error}, status=status)
