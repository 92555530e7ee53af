"""Every bound of the machine, by name. Relations between them are checked in tests/machine/test_limits.py.

They are part of the replicated rules: two nodes with different limits would answer differently, so a change here is
a change of the machine's version, not of a node's settings.
"""

from __future__ import annotations

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# --- names and ids ------------------------------------------------------------------------------------------------

MAX_NAME_CHARACTERS = 255
MAX_REQUEST_ID_BYTES = 128
MAX_ID = (1 << 64) - 1
MAX_TOKEN = (1 << 63) - 1
MAX_REVISION = 1 << 62

# --- time ---------------------------------------------------------------------------------------------------------

MIN_TTL_MS = 1
MAX_TTL_MS = 30 * DAY_MS
MAX_LIFETIME_MS = 3650 * DAY_MS
MAX_BLOCK_MS = 10 * MINUTE_MS
MAX_LOCK_DELAY_MS = 5 * MINUTE_MS
SAFETY_BUFFER_MS = 30 * SECOND_MS
"""How long an expired lease or session stays known, so that its owner is told what happened (DESIGN §6)."""

NEVER_MS = 1 << 62
"""A moment that does not come: the expiry of what only a session keeps alive, the deadline of what has none."""

TIMER_SHIFT = 7
"""A timer bucket is 128 ms wide: an expiry nobody asks about commits at most that much late, never early."""

MAX_NOW_MS = ((1 << 32) - 2 << TIMER_SHIFT) - MAX_LIFETIME_MS - SAFETY_BUFFER_MS
"""Timer buckets are 32-bit: about seven years of cluster time after the longest lifetime is taken off."""

# --- one command --------------------------------------------------------------------------------------------------

MAX_COMMAND_BYTES = 16 << 20
MAX_HEARTBEAT_LEASES = 100_000
MAX_BATCH_LEASES = 2_000
MAX_LOOKUP_LEASES = 10_000
MAX_KEYS_PER_ACQUIRE = 64
MAX_PERMITS = 1 << 20
MAX_LISTED_LOCKS = 1_000
LISTED_WAITERS = LISTED_HOLDERS = 16
"""Of each lock in a list; of one that is asked for by its key, all."""
MAX_LISTED_LEASES = 1_000

MAX_BATCH_RESOURCES = 1_000
MAX_BATCH_EDGES = 1_000
MAX_CLAIMS = 1_000
MAX_KINDS_PER_CLAIM = 64
MAX_SHOWN_PATH = 1_000
MAX_REASON_CHARACTERS = 1_024
MAX_SET_PART = 2_000
"""Members of a proposed set in one entry; a set comes in as many parts as it needs."""
MAX_SET_NUMBER = (1 << 32) - 1
MAX_EDGES_COUNTED = 2_000
"""Of a proposed set, in one entry: a member with more of them is counted over several."""
MAX_SETTLED = 2_000
MAX_LISTED_RESOURCES = 1_000
MAX_LISTED_LANES = 1_000

# --- one entry ----------------------------------------------------------------------------------------------------

MAX_EXPIRIES_PER_ENTRY = 100
"""Leases expired, released with their session, or forgotten in one entry without being asked for by name."""
MAX_TIMER_CHECKS_PER_ENTRY = 16_000
MAX_CUTS_PER_ENTRY = 10
"""Resources that nothing refers to any more, and references of them that are cut, in one entry without a sweep: what
was just released goes at once, and nobody notices the rest."""
MAX_SWEEP = 20_000
"""What a `Sweep` command may ask for on top."""

MAX_SHARED_OUT = 20_000
"""After looking at so many shards for commands, an entry leaves it to later ones to share out the rest."""

MAX_ORDER_VISITS = 20_000
"""How many resources an edge in an acyclic namespace may make the machine look at."""

# --- reclaim ------------------------------------------------------------------------------------------------------

DEFAULT_BUFFER_MS = 30 * SECOND_MS
MAX_BUFFER_MS = DAY_MS
MIN_CLAIM_MS = 100
MAX_CLAIM_MS = DAY_MS
MAX_ATTEMPTS = 10
"""After so many failed or abandoned attempts a clean-up is a dead letter."""
BACK_OFF_MS = SECOND_MS
MAX_BACK_OFF_MS = 10 * MINUTE_MS
TOGETHER = 4
"""So many clean-ups or more are worked off in one go; fewer one by one, which is quicker then."""
LANE_FAILURES = 5
"""So many failures in a row close a lane for a while: then one clean-up at a time is tried."""

# --- dispatch -----------------------------------------------------------------------------------------------------

MAX_PAYLOAD_BYTES = 256 << 10
MAX_BATCH_TASKS = 1_000
MAX_BATCH_BYTES = 8 << 20
"""Of payloads in one `PutTasks`, and about what one acquire hands out."""
MAX_ACQUIRED_TASKS = 1_000
MAX_QUEUES_PER_ACQUIRE = 64
MAX_MOVED_TASKS = 1_000
MAX_LISTED_TASKS = 1_000
MAX_LISTED_QUEUES = 1_000
MAX_PRIORITY = 255
MAX_DELAY_MS = 30 * DAY_MS
MIN_HEARTBEAT_MS = 10
MAX_HEARTBEAT_MS = HOUR_MS
MIN_TASK_LEASE_MS = 10
MAX_TASK_LEASE_MS = DAY_MS
MAX_BEATS = 1_000
MAX_HOLD_DOWN_MS = DAY_MS
MAX_TASK_ATTEMPTS = 10_000
MAX_TASK_BACK_OFF_MS = DAY_MS
MAX_RETENTION_MS = 30 * DAY_MS
MAX_CONCURRENCY = 1 << 20
MAX_SHARDS = 10_000
"""Of one queue."""
MAX_WORKERS = 1_000
"""Of one queue, as far as they have joined it to get shards."""
MAX_ALL_SHARDS = 1 << 17
MAX_ALL_WORKERS = 1 << 16

DEFAULT_TASK_LEASE_MS = 24 * SECOND_MS
DEFAULT_HEARTBEAT_MS = 3 * SECOND_MS
DEFAULT_SUSPECT_BEATS = 3
DEFAULT_DEBOUNCE_BEATS = 3
DEFAULT_HOLD_DOWN_MS = 10 * SECOND_MS
DEFAULT_MAX_HOLD_DOWN_MS = 10 * MINUTE_MS
DEFAULT_TASK_ATTEMPTS = 10
DEFAULT_BACK_OFF_MS = SECOND_MS
DEFAULT_MAX_BACK_OFF_MS = 10 * MINUTE_MS
DEFAULT_RETENTION_MS = HOUR_MS
DEFAULT_CONCURRENCY = 0

# --- copies -------------------------------------------------------------------------------------------------------

MAX_VERIFIED_COPIES = 1_000
"""In one page."""
MAX_LISTED_TOMBSTONES = 1_000
MAX_LISTED_HOLDERS = 1_000
MAX_WAITED_FOR = 10
"""How many holders the list names that a tombstone waits for: those that are furthest behind."""

# --- access -------------------------------------------------------------------------------------------------------

ACCESS_DIGEST_BYTES = 32
MAX_TOKEN_ID_CHARACTERS = 32
MAX_IDENTITY_CHARACTERS = 64
MAX_SCOPES = 16
"""Of one access token: every request with it goes through them."""
MAX_OVERLAP_MS = 7 * DAY_MS
"""How long the secret that was replaced may be taken beside the new one."""
MAX_ACTION_CHARACTERS = 64
MAX_LISTED_TOKENS = 1_000
MAX_LISTED_ACTIONS = 1_000

# --- the whole state ----------------------------------------------------------------------------------------------

MAX_LEASES = 1 << 25
MAX_SESSIONS = 1 << 22
MAX_NAMES = 1 << 27
MAX_NAMESPACES = 4_096
MAX_KINDS = 1_000
"""Kinds of resources in a namespace: every worker's claim looks at all of its provider's."""
MAX_RESOURCES = 1 << 24
MAX_EDGES = 1 << 26
MAX_TASKS = 1 << 24
MAX_TASK_BYTES = 8 << 30
"""Of payloads, in all of the cluster."""
MAX_HOLDERS = 1 << 16
MAX_TOMBSTONES = 1 << 22
"""Together with the resources that have copies, each of which has the place of its tombstone reserved."""
MAX_QUEUES = 4_096
MAX_ACCESS_TOKENS = 10_000
MAX_ACTIONS = 10_000
"""In the audit trail; the oldest go first."""
MAX_WAITERS_PER_KEY = 16_384
MAX_HOLDERS_PER_KEY = 16_384

MAX_REQUESTS = 1 << 18
MAX_REQUEST_BYTES = 64 << 20
REQUEST_MEMORY_MS = 15 * MINUTE_MS
"""How long a request id is remembered; less when more than MAX_REQUESTS arrive in that time (oldest go first)."""
MAX_REFUSALS = 1 << 16
MAX_REFUSAL_BYTES = 16 << 20
REFUSAL_MEMORY_MS = 6 * MINUTE_MS
"""The same of requests that were refused: longer than an earlier try of them may still be under way."""

MAX_EVENTS = 1 << 17

# --- quotas of a namespace unless it has its own ------------------------------------------------------------------

DEFAULT_LEASES = 10_000_000
DEFAULT_LOCKS = 1_000_000
DEFAULT_WAITERS = 200_000
DEFAULT_SESSIONS = 1_000_000
DEFAULT_RESOURCES = 4_000_000
DEFAULT_EDGES = 16_000_000
DEFAULT_NAME_BYTES = 2 << 30
DEFAULT_TASKS = 4_000_000
DEFAULT_QUEUES = 1_000
DEFAULT_HOLDERS = 10_000
DEFAULT_TOMBSTONES = 1_000_000
DEFAULT_TASK_BYTES = 4 << 30
DEFAULT_REQUESTS_PER_S = 1_000_000
"""Of each node: more than one can answer, so that a rate is only for those that are given one."""
MAX_QUOTA = 1 << 40
