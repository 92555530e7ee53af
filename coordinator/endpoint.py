"""One blocking call to a node's REST interface, for the command line. The SDK is in `client`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


class EndpointError(Exception):
    """The node could not be asked, or refused. The message is for a person."""


class NoAnswer(EndpointError):
    """Nothing is there, or it did not answer in time."""


def call(endpoint: str, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0) -> Any:
    """The decoded answer of `method` `path` at `endpoint`, a `host:port` or http:// address."""
    base = endpoint if "://" in endpoint else f"http://{endpoint}"
    if not base.startswith(("http://", "https://")):
        raise EndpointError(f"{endpoint} is not an http address; write host:port")
    request = urllib.request.Request(  # noqa: S310 - http or https, checked above
        base.rstrip("/") + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    # No proxy: the nodes are near, and a proxy variable of the environment would lead away from loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise EndpointError(_refusal(error)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NoAnswer(f"no answer from {base}: {reason}; is a node running there?") from None


def _refusal(error: urllib.error.HTTPError) -> str:
    with error:
        try:
            told = json.load(error)["error"]
            return f"{told['message']} ({told['code']}, {told['outcome']})"
        except (OSError, ValueError, KeyError, TypeError):
            return f"HTTP {error.code} {error.reason}"
