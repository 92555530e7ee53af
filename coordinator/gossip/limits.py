"""What a gossip node accepts, keeps and sends at most. The relations between them are checked by tests."""

from __future__ import annotations

from typing import Final

NODE_ID_BYTES: Final = 64
RECORD_ID_BYTES: Final = 200
CONTENT_BYTES: Final = 64 * 1024

EXACT_IDS: Final = 64
"""Up to so many holders a set is a list of their ids, and one set covers another exactly or not at all."""
PRECISION: Final = 10
LANES: Final = 4
"""Beyond that a set is this many sketches, each under a hash of its own. A missing holder is overlooked only when it
is masked in every one of them."""
MEMBERS: Final = 16_384
"""A set whose estimate says more holders than this is a lie or a mistake, and its message is refused."""

ITEMS: Final = 100_000
"""Records and tombstones together. A tombstone takes the place of its record, so a delete never finds the node full."""
PAGE_ITEMS: Final = 128
PAGE_BYTES: Final = 384 * 1024
MESSAGE_BYTES: Final = 1024 * 1024
"""A message has a page and a page's worth of gifts. Each may pass PAGE_BYTES by its last item, and still fits."""

STABLE_ROUNDS: Final = 8
"""For so many rounds nothing new may have come in before a node believes that everybody has the tombstone."""
ASKED_ROUNDS: Final = 4
"""What was asked for is waited for so many rounds, and then asked for again."""
HOT_ROUNDS: Final = 12
"""What changed in the last so many rounds goes out first."""

NONCE_ROUNDS: Final = 32
USED_NONCES: Final = 8192
UNCONFIRMED: Final = 64
"""Copies of one record that were handed over and not confirmed. With so many open, it is handed to nobody else."""

CONNECTIONS: Final = 512
CONNECTIONS_PER_ADDRESS: Final = 256
"""Who is behind them is not known before a request is proven. An address is one of IPv4, or a network (/64) of IPv6."""
BODIES_BYTES: Final = 64 * 1024 * 1024
BODIES_BYTES_PER_ADDRESS: Final = 32 * 1024 * 1024
"""Of requests that are being read: what somebody says it will send counts before it is sent."""
