"""TLS of the clients' ports, and of the calls a node makes to another: one certificate, replaced while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from coordinator.credentials import TlsFiles
from coordinator.http.identity import identity_of, is_node
from coordinator.trust import client_context


class NodeTls:
    """Made from the files once, and again by `renew`: connections that begin after it use the new ones."""

    def __init__(self, files: TlsFiles, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self.demands_certificate = files.clients == "certificate"
        self._load(files)
        self.listening = self._serving
        """The one to listen with; each connection is led to the newest on its first message."""
        self.listening.sni_callback = self._choose

    def renew(self, files: TlsFiles) -> None:
        """OptionsError or OSError, and nothing changed, if the files cannot be used."""
        self._load(files)

    def _load(self, files: TlsFiles) -> None:
        serving = files.serving()
        calling = client_context(files.ca, files.cert, files.key)
        pem = tuple(Path(each).read_bytes() for each in (files.key, files.cert, files.ca))
        self._serving, self.calling, self.pem = serving, calling, pem

    def _choose(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL asks for every connection, also when its client names no server."""
        if self._serving is not context:
            connection.context = self._serving

    def identity(self, certificate: Any, told: str | None) -> str | None:
        """Who asks, by the certificate of the connection; a node of this cluster may say for whom it asks."""
        return told if is_node(certificate, self._cluster_id) else identity_of(certificate)
