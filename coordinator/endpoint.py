"""One blocking call to a node's REST interface, for the command line. The SDK is in `client`."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PIECE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A node as it is spoken to: its `host:port` or URL, the TLS of https, and headers every request carries."""

    address: str
    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def base(self) -> str:
        scheme = "http" if self.tls is None else "https"
        base = self.address if "://" in self.address else f"{scheme}://{self.address}"
        if not base.startswith(("http://", "https://")):
            raise EndpointError(f"{self.address} is not an http address; write host:port")
        return base.rstrip("/")


class EndpointError(Exception):
    """The node could not be asked, or refused, with `status`, `code` and `outcome`. The message is for a person."""

    def __init__(self, message: str, *, status: int | None = None, code: str = "", outcome: str = "denied") -> None:
        super().__init__(message)
        self.status, self.code, self.outcome = status, code, outcome


class NoAnswer(EndpointError):
    """Nothing is there, or it did not answer in time. `outcome`: `unknown` of a change that may have been heard."""

    def __init__(self, message: str, *, outcome: str = "retry") -> None:
        super().__init__(message, outcome=outcome)


def call(
    endpoint: str | Endpoint, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0
) -> Any:
    """The decoded answer of `method` `path` at `endpoint`."""
    node = _endpoint(endpoint)
    request = urllib.request.Request(  # noqa: S310 - http or https, checked in Endpoint.base
        node.base + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **node.headers},
    )
    with _asked(node, request, timeout_s) as answer:
        try:
            return json.load(answer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _no_answer(node, request, error) from None


def _endpoint(endpoint: str | Endpoint) -> Endpoint:
    return endpoint if isinstance(endpoint, Endpoint) else Endpoint(endpoint)


def _asked(endpoint: Endpoint, request: urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    # No proxy: the nodes are near, and a proxy variable of the environment would lead away from loopback.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=endpoint.tls)
    )
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=timeout_s)
        return answer
    except urllib.error.HTTPError as error:
        raise _refusal(request, error) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _no_answer(endpoint, request, error) from None


def _no_answer(endpoint: Endpoint, request: urllib.request.Request, error: Exception) -> NoAnswer:
    reason = getattr(error, "reason", error)
    advice = "is a node running there?"
    if isinstance(reason, ConnectionRefusedError):
        advice += " `holdfast up` runs a cluster on this machine, for trying out"
    if isinstance(reason, ssl.SSLCertVerificationError):
        reason, advice = reason.verify_message, "say --ca, and reach it by a name that its certificate has"
    elif isinstance(reason, ssl.SSLError):
        advice = "does it serve TLS there, and does it want a certificate (--cert, --cert-key)?"
    elif endpoint.base.startswith("http://") and isinstance(error, http.client.BadStatusLine | ConnectionResetError):
        advice = "is a node running there, and does it serve TLS (https://, --ca)?"
        if not isinstance(error, ConnectionResetError):  # it said something
            reason = "what answers there does not speak HTTP"
            advice = "is it the node's http address, not its peer or gRPC one, and does it serve TLS (https://, --ca)?"
    told = f"no answer from {endpoint.base}: {_one_line(reason)}; {advice}"
    # What could not be connected to, or be sent, is wrapped by the library; what comes later is not.
    unsent = isinstance(error, urllib.error.URLError | http.client.InvalidURL)
    if request.get_method() == "GET" or unsent:
        return NoAnswer(told)
    return NoAnswer(f"{told} {_SO['unknown']}", outcome="unknown")


def _one_line(reason: object) -> str:
    """A library may quote what came from there, which may be anything."""
    said = str(reason) or type(reason).__name__
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in said)


@contextlib.contextmanager
def download(endpoint: str | Endpoint, path: str, timeout_s: float) -> Iterator[Iterator[bytes]]:
    """The answer's body, piece by piece as it arrives; `timeout_s` is for each. NoAnswer also when it breaks off."""
    node = _endpoint(endpoint)
    request = urllib.request.Request(node.base + path, headers=dict(node.headers))  # noqa: S310 - checked
    with _asked(node, request, timeout_s) as answer:

        def pieces() -> Iterator[bytes]:
            try:
                while piece := answer.read1(PIECE_BYTES):
                    yield piece
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(f"{node.base} broke off: {error!r}; try again") from None

        yield pieces()


_SO = {
    "denied": "Nothing was changed.",
    "retry": "Nothing was done: try again.",
    "unknown": "Nobody can say whether it was done: look before you try again.",
}


def _refusal(request: urllib.request.Request, error: urllib.error.HTTPError) -> EndpointError:
    with error:
        try:
            told = json.load(error)["error"]
            outcome = str(told["outcome"])
            looked = request.get_method() == "GET" and outcome != "unknown"
            message = str(told["message"]) if looked else f"{told['message']}. {_SO[outcome]}"
            return EndpointError(message, status=error.code, code=told["code"], outcome=outcome)
        except (OSError, ValueError, KeyError, TypeError):
            return EndpointError(f"HTTP {error.code} {error.reason}", status=error.code)
