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
    Retry,
    SessionLost,
    StaleToken,
    Stalled,
    TaskLost,
    TooMuch,
    Unavailable,
)
from coordinator.client.guards import FileGuard, ObjectGuard, TokenFloor, fencing_middleware
from coordinator.client.guards_sql import SqlGuard
from coordinator.client.holders import Holder
from coordinator.client.leases import Lease
from coordinator.client.lock import Held, Lock
from coordinator.client.queues import Enqueued, NewTask, QueueView, ShardView, TaskView, WorkerView
from coordinator.client.recipes import Barrier, Election, Group, Leader, Member, ReadWriteLock, Semaphore
from coordinator.client.reclaim import ReclaimItem
from coordinator.client.resources import Edge, Explanation, Loss, Reclaim, Resource, Root, Waiting
from coordinator.client.sessions import Session, SessionHeld
from coordinator.client.shards import ShardWorker
from coordinator.client.stall import StallDetector, StallGuard
from coordinator.client.sync import SyncClient, SyncHeld, SyncLock
from coordinator.client.tasks import Task
from coordinator.client.valve import Freed, Relief, SafetyValve
from coordinator.client.verifier import LeaseVerifier
from coordinator.client.watch import Event
from coordinator.client.worker import Worker

__all__ = [
    "Barrier",
    "Client",
    "Compacted",
    "Conflict",
    "Denied",
    "Edge",
    "Election",
    "Enqueued",
    "Event",
    "Explanation",
    "FileGuard",
    "Freed",
    "Gone",
    "Group",
    "Held",
    "Holder",
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
    "NewTask",
    "NotAllowed",
    "NotFound",
    "NotHeld",
    "ObjectGuard",
    "OutcomeUnknown",
    "QueueView",
    "ReadWriteLock",
    "Reclaim",
    "ReclaimItem",
    "Relief",
    "Resource",
    "Retry",
    "Root",
    "SafetyValve",
    "Semaphore",
    "Session",
    "SessionHeld",
    "SessionLost",
    "ShardView",
    "ShardWorker",
    "SqlGuard",
    "StaleToken",
    "StallDetector",
    "StallGuard",
    "Stalled",
    "SyncClient",
    "SyncHeld",
    "SyncLock",
    "Task",
    "TaskLost",
    "TaskView",
    "TokenFloor",
    "TooMuch",
    "Unavailable",
    "Waiting",
    "Worker",
    "WorkerView",
    "fencing_middleware",
]
