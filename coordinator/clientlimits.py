"""What clients may take of a node before anything is done for them: the bounds of the HTTP port, by name.

`ClientLimits` are settings (`[clients]` in the file); the constants are the same on every node. What the replicated
state may hold is in `machine/limits`, what peers may take is in `cluster`. docs/LIMITS.md lists all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from cluster.options import OptionsError

# --- one request --------------------------------------------------------------------------------------------------

BODY_BYTES = 4 << 20
"""Decompressed. Room for 100,000 ids in JSON (2 MB) and for a batch of 10,000 long names."""
BODY_OBJECTS = 100_000
"""Objects and lists in one body: each costs far more than the byte that says it."""
BODY_DEPTH = 128
"""Objects and lists in each other."""
LINE_BYTES = 8_190
"""The request line, and with it the URL."""
HEADER_BYTES = 8_190
"""One header."""
HEADERS = 64
"""How many of them."""
HEAD_BYTES = 64 << 10
"""Request line and headers together."""

# --- one connection -----------------------------------------------------------------------------------------------

SEND_S = 30.0
"""A client that takes nothing of its answer for so long is cut off."""
LINGER_S = 2.0
"""How long the rest of a body that nobody wants is read, so that the refusal arrives."""
LOOK_S = 0.5
"""How often the connections are looked at: by so much a bound in seconds may be exceeded, and by more only while
thousands are ended at once."""
TURN_ACCEPTS = 8
"""So many come in in one turn of the event loop at most. One at a time, everybody who was cut off with a node that
starts again would stand at its door for as many turns, and those are long while it reads what it missed."""
ACCEPT_S = 0.004
"""One comes in, and one more for each of these that the last turn took: where turns are short, a crowd that comes in
makes them no longer."""
TURN_LOOKS = 32
"""So many are looked at in one turn of the event loop."""
TURN_ENDS = 4
"""So many of these are ended, then others have their turns: a thousand whose time is over keep nobody waiting."""
ENDS_PAUSE_S = 0.001
"""So long they have them."""

# --- one node -----------------------------------------------------------------------------------------------------

BODIES_BYTES = 256 << 20
"""Of all requests under way together."""
BODIES_BYTES_PER_NAMESPACE = 192 << 20
"""So that others can send too, however slowly one sends."""
EARLY_BYTES = 64 << 20
"""Of what clients send while their last request is still being answered; if it is more, those that have most of it are
cut off, at the address that has most."""
EARLY_REQUEST_BYTES = 4 << 10
"""What each request among it counts for on top: it is made of more than its bytes."""
UNTAKEN_BYTES = 256 << 20
"""Of answers that wait for their clients to take them; if it is more, those that have most of it are cut off too."""
WATCHES = 4_096
"""Streams of events that are open."""
WATCHES_PER_NAMESPACE = 3_072
"""So that others can watch too."""
DESCRIPTORS_KEPT = 128
"""Never given to clients: the journal, a snapshot and the links to peers need some at any moment."""
BACKLOG = 1_024
"""Connections that wait to be accepted."""
SHORTAGE_PAUSE_S = 0.1
"""Between two tries to accept when the process has no descriptors left."""

# --- gRPC ---------------------------------------------------------------------------------------------------------

MESSAGE_BYTES_MAX = 16 << 10
"""The longest names come to 2 KB."""
MESSAGE_S = 30.0
"""A call that has begun and sends no message for so long is ended."""
CALLS_MAX = 10_000
"""Under way at once, streams included; more get RESOURCE_EXHAUSTED."""
CALLS_PER_NAMESPACE = 7_500
"""So that others can call too, however long the calls of one take."""

# --- sharing a busy node ------------------------------------------------------------------------------------------

TURN_REQUESTS = 8
"""Of one namespace begin in one turn of the event loop; a crowd waits for the next turns, others pass it."""
IN_WORK = 64
"""Of one namespace while others are here as well: what it asks beyond that waits for its turn, before the log."""
LONG_TURN_S = 0.000_5
"""A node whose event loop takes so long for a turn has too much to do, and an answer needs ten of them: IN_WORK is
halved each time that is seen, down to TURN_REQUESTS, and grows by one each time it is not."""
SHORT_TURN_S = 0.000_15
"""Who asks too much is refused ever less often only while turns are shorter than that, on average."""
PACE_TURNS = 4
"""So many turns are looked at each time."""
CROWD_MOST = 256
"""Of one namespace while others are here as well: more may not wait for a turn, whoever it is that asks too much."""
SHARED_S = 1.0
"""So long after the last turn of another, a namespace has the node for itself."""
TICK_S = 0.02
"""How often it is looked at whether the node is busy."""
BUSY_LAG_S = 0.01
"""A node whose loop comes to its work so much too late, on average, is busy."""
BUSY_CROWD = 4 * TURN_REQUESTS
"""So is one at which as many requests wait for their turn, on average. Who has more here than these, and more than an
equal part of all that are here, is the one that asks too much."""
BUSY_COMMANDS = 2_000
"""So is one that has as many commands waiting to be committed."""
SHARE_S = 10.0
"""Over which time it is counted who asks how much, if nobody has a crowd here: as long as a client may be told to
stay away."""
MOMENT_S = 0.25
"""And over which it must be so as well: who goes on quietly is not taken for one that has just begun."""
SHARERS = 8_192
"""Namespaces, and tokens and addresses that ask for what belongs to none, that are told apart in that count."""
SHARE_BYTES = 4_096
"""A body counts as one more request for each of these."""
MODEST_REQUESTS = 2_000
"""A namespace with fewer requests than these in that time is never the one that asks too much."""
PRESSURE_MOST = 0.98
"""Of the requests of those that ask too much, at most this part is refused: what they do stays visible to them."""
PRESSURE_URGENT = 0.75
"""From this part on renewals and releases are refused as well; before, they go on."""
REFUSALS_PER_S = 200
"""A refusal costs as well. If there are more, each tells its client to stay away for longer."""
AWAY_S = 10.0
"""The longest that a client is told to stay away."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Seconds and counts. `origins`: from where browsers may change something besides this node's own pages."""

    connections: int = 16_384
    """On all of the port; fewer if the process may not have so many descriptors."""
    connections_per_address: int = 12_288
    """Of one IPv4 address or one IPv6 network (/64)."""
    grpc_connections: int = 4_096
    """On all of the gRPC port, in the same way."""
    header_seconds: float = 10.0
    """From the first byte of a request, or from the beginning of the connection, to the end of its headers; of a
    connection of gRPC, to the end of its hand-shake."""
    body_seconds: float = 30.0
    """From the end of the headers to the end of the body."""
    idle_seconds: float = 75.0
    """Between two requests of a connection, or two calls."""
    origins: str = ""
    """`https://host:port`, several with spaces between them."""

    @property
    def allowed_origins(self) -> frozenset[str]:
        return frozenset(self.origins.lower().split())

    def check(self) -> None:
        if not 1 <= self.connections_per_address <= self.connections <= 1_000_000:
            raise OptionsError(
                "clients.connections_per_address must be at least 1 and at most clients.connections, "
                "and that at most 1,000,000"
            )
        if not 1 <= self.grpc_connections <= 1_000_000:
            raise OptionsError("clients.grpc_connections must be between 1 and 1,000,000")
        for name in ("header_seconds", "body_seconds", "idle_seconds"):
            if not 0.1 <= getattr(self, name) <= 3_600:
                raise OptionsError(f"clients.{name} must be between 0.1 and 3600 seconds")
        for origin in self.allowed_origins:
            parts = urlsplit(origin)
            whole = f"{parts.scheme}://{parts.netloc}"
            if parts.scheme not in ("http", "https") or not parts.netloc or origin != whole:
                raise OptionsError(
                    f"clients.origins has {origin!r}; write each as scheme://host or scheme://host:port, "
                    "such as https://ops.example.org, without a path"
                )
