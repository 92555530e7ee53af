"""The SDK. `from coordinator.client import Client`"""

from coordinator.client.client import Client
from coordinator.client.errors import (
    Compacted,
    Conflict,
    Denied,
    Gone,
    HoldfastError,
    Invalid,
    LeaseLost,
    LockBusy,
    LockLost,
    NotAllowed,
    NotFound,
    NotHeld,
    OutcomeUnknown,
    SessionLost,
    StaleToken,
    Stalled,
    TooMuch,
    Unavailable,
)
from coordinator.client.guards import FileGuard, ObjectGuard, TokenFloor, fencing_middleware
from coordinator.client.guards_sql import SqlGuard
from coordinator.client.leases import Lease
from coordinator.client.lock import Held, Lock
from coordinator.client.recipes import Barrier, Election, Group, Leader, Member, ReadWriteLock, Semaphore
from coordinator.client.reclaim import ReclaimItem
from coordinator.client.resources import Edge, Explanation, Loss, Reclaim, Resource, Root, Waiting
from coordinator.client.sessions import Session, SessionHeld
from coordinator.client.stall import StallDetector, StallGuard
from coordinator.client.sync import SyncClient, SyncHeld, SyncLock
from coordinator.client.valve import Freed, Relief, SafetyValve
from coordinator.client.verifier import LeaseVerifier
from coordinator.client.watch import Event

__all__ = [
    "Barrier",
    "Client",
    "Compacted",
    "Conflict",
    "Denied",
    "Edge",
    "Election",
    "Event",
    "Explanation",
    "FileGuard",
    "Freed",
    "Gone",
    "Group",
    "Held",
    "HoldfastError",
    "Invalid",
    "Leader",
    "Lease",
    "LeaseLost",
    "LeaseVerifier",
    "Lock",
    "LockBusy",
    "LockLost",
    "Loss",
    "Member",
    "NotAllowed",
    "NotFound",
    "NotHeld",
    "ObjectGuard",
    "OutcomeUnknown",
    "ReadWriteLock",
    "Reclaim",
    "ReclaimItem",
    "Relief",
    "Resource",
    "Root",
    "SafetyValve",
    "Semaphore",
    "Session",
    "SessionHeld",
    "SessionLost",
    "SqlGuard",
    "StaleToken",
    "StallDetector",
    "StallGuard",
    "Stalled",
    "SyncClient",
    "SyncHeld",
    "SyncLock",
    "TokenFloor",
    "TooMuch",
    "Unavailable",
    "Waiting",
    "fencing_middleware",
]
