"""One blocking call to a node's REST interface, for the command line. The SDK is in `client`."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

PIECE_BYTES = 1 << 18


class EndpointError(Exception):
    """The node could not be asked, or refused, with `status` and `code`. The message is for a person."""

    def __init__(self, message: str, *, status: int | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class NoAnswer(EndpointError):
    """Nothing is there, or it did not answer in time."""


def call(endpoint: str, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0) -> Any:
    """The decoded answer of `method` `path` at `endpoint`, a `host:port` or http:// address."""
    request = urllib.request.Request(  # noqa: S310 - http or https, checked in _base
        _base(endpoint) + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with _asked(endpoint, request, timeout_s) as answer:
        try:
            return json.load(answer)
        except (OSError, ValueError) as error:
            raise _no_answer(endpoint, error) from None


def _base(endpoint: str) -> str:
    base = endpoint if "://" in endpoint else f"http://{endpoint}"
    if not base.startswith(("http://", "https://")):
        raise EndpointError(f"{endpoint} is not an http address; write host:port")
    return base.rstrip("/")


def _asked(endpoint: str, request: urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    # No proxy: the nodes are near, and a proxy variable of the environment would lead away from loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=timeout_s)
        return answer
    except urllib.error.HTTPError as error:
        raise _refusal(error) from None
    except (OSError, ValueError) as error:
        raise _no_answer(endpoint, error) from None


def _no_answer(endpoint: str, error: Exception) -> NoAnswer:
    reason = getattr(error, "reason", error)
    return NoAnswer(f"no answer from {_base(endpoint)}: {reason}; is a node running there?")


@contextlib.contextmanager
def download(endpoint: str, path: str, timeout_s: float) -> Iterator[Iterator[bytes]]:
    """The answer's body, piece by piece as it arrives; `timeout_s` is for each. NoAnswer also when it breaks off."""
    with _asked(endpoint, urllib.request.Request(_base(endpoint) + path), timeout_s) as answer:  # noqa: S310 - checked

        def pieces() -> Iterator[bytes]:
            try:
                while piece := answer.read1(PIECE_BYTES):
                    yield piece
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(f"{endpoint} broke off: {error!r}; try again") from None

        yield pieces()


def _refusal(error: urllib.error.HTTPError) -> EndpointError:
    with error:
        try:
            told = json.load(error)["error"]
            message = f"{told['message']} ({told['code']}, {told['outcome']})"
            return EndpointError(message, status=error.code, code=told["code"])
        except (OSError, ValueError, KeyError, TypeError):
            return EndpointError(f"HTTP {error.code} {error.reason}", status=error.code)
