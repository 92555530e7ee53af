"""The SDK. `from coordinator.client import Client`, or `SyncClient` for code without an event loop.

What can go wrong:

HoldfastError
├── Denied              the cluster said no, and nothing changed
│   ├── Invalid           a value is malformed or out of bounds (400, 413), or breaks a rule such as acyclicity (422)
│   ├── NotAllowed        this caller may not (401, 403)
│   ├── NotHeld           the lock, lease or claim is not, or no longer, the caller's (403, 410)
│   │   └── StaleToken      what the lock protects has seen a newer holder's token
│   ├── NotFound          there is no such thing (404)
│   ├── Conflict          somebody else has it, or it is in use (409)
│   │   └── LockBusy        waited for as long as asked, in vain
│   ├── Gone              reclaimed, or compacted away (410)
│   │   └── Compacted       events that a watch asked for are gone; `revision` is the first that is there
│   └── TooMuch           over a quota (429)
├── Unavailable         no node could take it; nothing was done, try again later
├── OutcomeUnknown      it may have been done; `request_id` repeats it safely
├── LockLost            raised out of a lock's body: ownership could not be confirmed in time
│   └── Stalled           this process stood still for too long: discard the transaction, verify the token
├── LeaseLost           the same of a lease, raised at the end of its body
├── SessionLost         the same of a session
├── TaskLost            the same of a task, raised by its `check`
└── Retry               raised by a handler of tasks: try it again, after `delay` seconds if it says so
"""

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
from coordinator.client.sync import SyncClient
from coordinator.client.sync_leases import SyncLease, SyncSession, SyncSessionHeld
from coordinator.client.sync_lock import SyncHeld, SyncLock
from coordinator.client.sync_recipes import SyncBarrier, SyncElection, SyncGroup, SyncReadWriteLock, SyncSemaphore
from coordinator.client.sync_registry import SyncQueues, SyncResources
from coordinator.client.sync_work import SyncHolder, SyncShardWorker, SyncWorker
from coordinator.client.tasks import Task
from coordinator.client.valve import Freed, Relief, SafetyValve
from coordinator.client.verifier import LeaseVerifier
from coordinator.client.watch import Event
from coordinator.client.worker import Worker
from coordinator.trust import client_context

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
    "SyncBarrier",
    "SyncClient",
    "SyncElection",
    "SyncGroup",
    "SyncHeld",
    "SyncHolder",
    "SyncLease",
    "SyncLock",
    "SyncQueues",
    "SyncReadWriteLock",
    "SyncResources",
    "SyncSemaphore",
    "SyncSession",
    "SyncSessionHeld",
    "SyncShardWorker",
    "SyncWorker",
    "Task",
    "TaskLost",
    "TaskView",
    "TokenFloor",
    "TooMuch",
    "Unavailable",
    "Waiting",
    "Worker",
    "WorkerView",
    "client_context",
    "fencing_middleware",
]
