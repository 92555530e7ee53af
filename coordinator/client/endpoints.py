"""Where nodes are, as it is written: by whoever makes a client, and by the nodes of each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

from coordinator.client.errors import Invalid


def named(endpoints: str | Sequence[str], scheme: str) -> list[str]:
    """As addresses of nodes; those that say no scheme are of `scheme`."""
    given = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
    found = [each.strip() for each in given if each.strip()]
    if not found:
        raise Invalid("a client needs at least one endpoint, for example http://127.0.0.1:7101")
    found = [(each if "://" in each else f"{scheme}://{each}").rstrip("/") for each in found]
    for each in found:
        if not each.startswith(("http://", "https://")):
            raise Invalid(f"the endpoint {each!r} begins neither with http:// nor with https://")
        if not _names_a_host(each):
            raise Invalid(f"the endpoint {each!r} has no host, or a port that is none: say http://HOST:PORT")
    return found


def _names_a_host(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


async def meant_by(addresses: Collection[str], places: Mapping[str, int], limit_s: float) -> dict[str, int]:
    """The places of those of `addresses` that lead to one of ours, under whatever name."""
    ours = {each: place for address, place in places.items() for each in await _resolved(address, limit_s)}
    found: dict[str, int] = {}
    for address in addresses:
        for each in await _resolved(address, limit_s):
            if each in ours:
                found[address] = ours[each]
    return found


async def _resolved(address: str, limit_s: float) -> set[tuple[str, int]]:
    try:
        parts = urlsplit(f"//{address}")
        async with asyncio.timeout(limit_s):
            found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except (OSError, ValueError, TimeoutError):
        return set()
    return {(str(where[0]), int(where[1])) for *_, where in found}
