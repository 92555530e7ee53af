"""Where an address is: what counts as one sender."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=1_024)
def place_of(address: str) -> str:
    """Where an IP address is: whoever has one IPv6 address has the 2^64 around it."""
    known = ipaddress.ip_address(address.partition("%")[0])
    if known.version == 6 and known.ipv4_mapped is None:
        return str(ipaddress.ip_network((known, 64), strict=False))
    return str(known)
