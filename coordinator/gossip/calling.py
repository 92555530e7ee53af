"""The asking side of HTTP: a challenge, a sealed request, and an answer that is believed only with its MAC."""

from __future__ import annotations

import inspect
import io
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from coordinator.gossip.limits import MESSAGE_BYTES
from coordinator.gossip.messages import unpacked
from coordinator.gossip.seal import NotAuthentic, Seal, same
from coordinator.gossip.tally import Implausible, check_node_id

PREFIX = "/gossip/v1"
SENDER_HEADER = "X-Gossip-Sender"
NONCE_HEADER = "X-Gossip-Nonce"
MAC_HEADER = "X-Gossip-Mac"
CALL_S = 10.0


class CallFailed(Exception):
    """No answer, or none that counts. Whether the request was taken in is not known."""


class CallRefused(Exception):
    """The other node said no, and why."""


@dataclass(slots=True)
class Traffic:
    sent_bytes: int = 0
    received_bytes: int = 0


class Caller:
    """Calls other nodes in the name of `asker`."""

    def __init__(
        self, asker: str, seal: Seal, session: aiohttp.ClientSession, tls: ssl.SSLContext | None = None
    ) -> None:
        self.traffic = Traffic()
        self._tls = tls or True
        self._scheme = "http" if tls is None else "https"
        self._asker = asker
        self._seal = seal
        self._session = session

    async def call(self, address: str, verb: str, body: Callable[[str], bytes | Awaitable[bytes]]) -> tuple[str, bytes]:
        """Who answered, and what. `body` is made when it is known who will answer."""
        try:
            answerer, nonce = await self._challenge(address)
            made = body(answerer)
            told = await made if inspect.isawaitable(made) else made
            return answerer, await self._request(address, f"{PREFIX}/{verb}", answerer, nonce, told)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CallFailed(f"{address}: {str(error) or type(error).__name__}") from error
        except (NotAuthentic, Implausible) as error:
            raise CallFailed(f"{address}: {error}") from error

    async def _challenge(self, address: str) -> tuple[str, bytes]:
        async with self._session.post(
            f"{self._scheme}://{address}{PREFIX}/challenge", headers={SENDER_HEADER: self._asker}, timeout=_limit(),
            allow_redirects=False, ssl=self._tls,
        ) as answer:  # fmt: skip
            raw = await _bounded(answer, 4096)
        match unpacked(raw):
            case [answerer, bytes(nonce)]:
                return check_node_id(answerer), nonce
        raise NotAuthentic("an answer that is no challenge")

    async def _request(self, address: str, path: str, answerer: str, nonce: bytes, body: bytes) -> bytes:
        mac = self._seal.request("POST", path, self._asker, answerer, nonce, body)
        headers = {SENDER_HEADER: self._asker, NONCE_HEADER: nonce.hex(), MAC_HEADER: mac.hex()}
        self.traffic.sent_bytes += len(body)
        async with self._session.post(
            f"{self._scheme}://{address}{path}", data=io.BytesIO(body), headers=headers, timeout=_limit(),
            allow_redirects=False, ssl=self._tls,
        ) as answer:  # fmt: skip
            raw = await _bounded(answer, MESSAGE_BYTES)
            told = answer.headers.get(MAC_HEADER, "")
            status = answer.status
        self.traffic.received_bytes += len(raw)
        # A stranger's header may be of any bytes.
        if not same(told.encode(errors="replace"), self._seal.answer(mac, status, raw).hex().encode()):
            raise NotAuthentic(f"an answer ({status}) without a good MAC: is the secret the same?")
        if status != 200:
            raise CallRefused(raw.decode(errors="replace"))
        return raw


async def _bounded(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    raw = b""
    async for chunk in answer.content.iter_chunked(64 * 1024):
        raw += chunk
        if len(raw) > most_bytes:
            raise NotAuthentic(f"an answer of more than {most_bytes} bytes")
    return raw


def _limit() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=CALL_S)


def once_name() -> str:
    """A name for somebody who is no node: the command line."""
    return f"visitor-{os.urandom(6).hex()}"
