"""`host:port` as people write it: splitting, and what kind of host it is. Nothing here resolves names."""

from __future__ import annotations

import ipaddress

from cluster.places import place_of

__all__ = ["AddressError", "is_loopback", "is_wildcard", "place_of", "split_address"]


class AddressError(ValueError):
    """An address that cannot be used. The message names the setting and the fix."""


def split_address(name: str, text: str) -> tuple[str, int]:
    """`127.0.0.1:7101`, `node-1:7101` or `[::1]:7101` as host and port. `name` is the setting, for the message."""
    host, colon, port_text = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or (":" in host and not bracketed) or any(c.isspace() or c in "/@" for c in host):
        raise AddressError(f"{name} {text!r} must be host:port, as in 127.0.0.1:7101 or [::1]:7101")
    if not (port_text.isascii() and port_text.isdigit()) or not 1 <= int(port_text) <= 65535:
        raise AddressError(f"{name} {text!r} needs a port from 1 to 65535 after the colon")
    return host, int(port_text)


def is_loopback(host: str) -> bool:
    """True only for what surely stays on this machine; a name other than localhost might not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """True for 0.0.0.0 and ::, on which one can listen but which nobody can dial."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
