"""Access tokens as texts: how one is made, and how it is known again. What each allows is in the replicated state.

A token is `hf_<id>_<secret>`. The id is public: it names the token in lists and in the audit trail, and finds it. The
secret has 192 random bits, so a plain SHA-256 of the token tells nothing about it.
"""

from __future__ import annotations

import hashlib
import re
import secrets

ID_BYTES = 8
SECRET_BYTES = 24
ROOT = "root"
"""The id of the token that is in no state but in a file of every node: the first administrator's."""

_TOKEN = re.compile(r"hf_([A-Za-z0-9]{1,32})_[0-9a-f]{48}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def new_id() -> str:
    return secrets.token_hex(ID_BYTES)


def new_token(token_id: str) -> str:
    return f"hf_{token_id}_{secrets.token_hex(SECRET_BYTES)}"


def id_of(text: str) -> str | None:
    """The id of the token that `text` may be; None when it cannot be one."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else found[1]


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def root_digest(text: str) -> bytes | None:
    """Of what a root token file holds: the token, or `sha256:` and its digest. None when it is neither."""
    told = _DIGEST.fullmatch(text)
    if told is not None:
        return bytes.fromhex(told[1])
    return digest_of(text) if id_of(text) == ROOT else None
