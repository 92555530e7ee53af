"""Certificates and secrets of a node that runs, brought up to date: when it gets SIGHUP, and when the files change.

SIGHUP reads the configuration file again and takes from it [tls], secret_file and previous_secret_file; everything
else waits for a restart. Between signals the files of [tls] are looked at now and then, because certificates are
mostly renewed by a program that knows of no signal. The secret is not: it changes in an order (docs/SECURITY.md).

What cannot be used is told and changes nothing. A certificate and its key are two files, so in the middle of a
replacement they may not fit together; the next look finds them whole. One that is about to expire, or that is not for
the address under which others know the node, is told once a day. When those in use end is among the node's numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from cluster.host import PeerTls
from cluster.options import OptionsError
from coordinator.addresses import split_address
from coordinator.config import ConfigError, NodeConfig
from coordinator.credentials import TlsFiles, refuse_open
from coordinator.events import log_event
from coordinator.telemetry import Telemetry
from coordinator.trust import TrustError

LOOK_S = 5.0
REMIND_S = 86_400.0
REMIND_DAYS = 30

Load = Callable[[], NodeConfig]


class Renewable(Protocol):
    """`cluster.host.Host`, as far as it is needed here."""

    def renew(self, tls: PeerTls | None, secret: bytes, previous_secret: bytes | None) -> None: ...


class Served(Protocol):
    """`coordinator.http.tls.NodeTls`, likewise."""

    def renew(self, files: TlsFiles) -> None: ...


def peer_tls(config: NodeConfig) -> PeerTls | None:
    files = config.tls
    return None if files is None else PeerTls(str(files.cert), str(files.key), str(files.ca))


def _stamp(config: NodeConfig) -> tuple[tuple[int, ...], ...]:
    return () if config.tls is None else config.tls.stamp


def _mode(config: NodeConfig) -> str:
    return "none" if config.tls is None else config.tls.clients


class Renewal:
    def __init__(self, config: NodeConfig, load: Load, telemetry: Telemetry) -> None:
        """Before anything of `config` is read: what changes later is found to have changed."""
        self.config = config
        """With the credentials in use."""
        self.served: Served | None = None
        self._first = config
        self._load = load
        self._telemetry = telemetry
        self._host: Renewable | None = None
        self._seen = _stamp(config)
        self._told = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._on_signal)
        if self.config.tls is not None:
            self._telemetry.certificate_expires_s = _ends(self.config.tls)
            self._task = loop.create_task(self._look())

    async def stop(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def attach(self, host: Renewable) -> None:
        """Once it is open, with what the node started with."""
        self._host = host
        if self.config is not self._first:
            host.renew(peer_tls(self.config), self.config.secret, self.config.previous_secret)

    def _on_signal(self) -> None:
        self._told = ""
        try:
            self._renew(self._load(), "SIGHUP")
        except ConfigError as error:
            self._failed(str(error))

    async def _look(self) -> None:
        reminded = float("-inf")
        loop = asyncio.get_running_loop()
        while (files := self.config.tls) is not None:
            if files.stamp != self._seen:
                # A copy, for `attach` to see that it is not what the node started with.
                self._renew(replace(self.config), "files")
            if loop.time() - reminded >= REMIND_S:
                reminded = loop.time()
                _remind(files)
                _compare_names(files, self.config.http_advertise)
            await asyncio.sleep(LOOK_S)

    def _renew(self, config: NodeConfig, cause: str) -> None:
        """The peers' part first: it is the one that may still refuse what the clients' part would take."""
        seen = _stamp(config)
        try:
            if _mode(config) != _mode(self.config):
                raise OptionsError("[tls] cannot come or go, nor tls.clients change, while the node runs; restart it")
            if config.tls is not None:
                refuse_open("tls.key", config.tls.key)
            if self._host is not None:
                self._host.renew(peer_tls(config), config.secret, config.previous_secret)
            if self.served is not None and config.tls is not None:
                self.served.renew(config.tls)
        except (ConfigError, OptionsError, TrustError, OSError) as error:
            self._failed(str(error))
            return
        self.config, self._seen, self._told = config, seen, ""
        if config.tls is not None:
            self._telemetry.certificate_expires_s = _ends(config.tls)
        log_event("credentials_renewed", {"cause": cause})

    def _failed(self, reason: str) -> None:
        """Told once: the next look will find the same."""
        if reason != self._told:
            self._told = reason
            log_event("renewal_failed", {"level": "error", "reason": reason, "in_use": "the ones before"})


def _ends(files: TlsFiles) -> dict[str, float]:
    """Of several in a file, a chain or the authorities believed, the one that ends first."""
    # Only now: a node without certificates need not have the library in its memory.
    from coordinator.authority import AuthorityError, first_end_s  # noqa: PLC0415

    found = {}
    for name, path in (("cert", files.cert), ("ca", files.ca)):
        with contextlib.suppress(AuthorityError):  # told by the reminder
            found[name] = first_end_s(path)
    return found


def _remind(files: TlsFiles) -> None:
    """Those of the node and of the authorities it believes."""
    from coordinator.authority import AuthorityError, described  # noqa: PLC0415 - as above

    for path in (files.cert, files.ca):
        try:
            ending = [each for each in described(path) if each["days_left"] < REMIND_DAYS]
        except AuthorityError as error:
            log_event("certificate_unreadable", {"level": "warning", "reason": str(error)})
            continue
        for each in ending:
            told = {"file": each["file"], "name": each["name"], "expires": each["not_after"]}
            log_event("certificate_expires", {"level": "warning", **told, "days_left": each["days_left"]})


def _compare_names(files: TlsFiles, advertised: str) -> None:
    """Clients and other nodes refuse a certificate that is not for where they meant to go."""
    from coordinator.authority import AuthorityError, described  # noqa: PLC0415 - as above

    host = split_address("http_advertise", advertised)[0].lower()
    with contextlib.suppress(AuthorityError):
        names = [name.lower() for name in described(files.cert)[0]["names"]]
        if host not in names and not any(name.startswith("*.") for name in names):
            told = {"file": files.cert, "host": host, "names": ", ".join(names)}
            log_event("certificate_misses_host", {"level": "warning", **told, "fix": f"issue it with --host {host}"})
