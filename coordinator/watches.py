"""Events on their way to whoever waits for them: watchers of a stream, and requests that wait for their own answer.

A watch is a place in the machine's ring of events and a wake-up, nothing more: no watcher has a buffer of its own, so
thousands of slow ones cost nothing, and one that falls behind the ring is told `compacted`, never skipped over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coordinator.machine.events import Compacted, Event

Place = tuple[int, int]
"""A revision, and how many of its events are behind the reader: revisions may have many."""

EventsSince = Callable[[int, int | None], list[Event] | Compacted]
EVENTS_A_READ = 512
"""A watch that starts far back reads in pieces of about this size, and lets others work in between."""
"""The machine's retained events of later revisions than the given one."""

Topic = tuple[str, str]
"""What requests for work wait for: the clean-ups of a provider, the tasks of a queue, what concerns a worker."""

QUEUE_NEWS = frozenset(("task_ready", "queue_changed", "queue_deleted"))
WORKER_NEWS = frozenset(("task_completed", "task_failed", "task_revoked", "task_dead", "task_dropped"))
"""They make room for another task of the worker."""
SHARD_NEWS = frozenset(("shard_assigned", "shard_revoking", "shard_released", "worker_lost", "worker_left"))

BEGINNINGS = frozenset(("wait_begun", "lock_granted"))
"""What an acquire that comes into the log begins with, if it is not refused."""

_PERSONAL = ("session_", "holder_")

END = 1 << 30
"""Behind all events of a revision, however many it has."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a watcher wants to hear of. Empty means all."""

    namespace: str
    prefix: str = ""
    kinds: frozenset[str] = frozenset()
    owner: str = ""
    sources: tuple[str, ...] = ("",)
    """Edges only from resources that begin with one of these: an edge names two of them, and `key` is the other."""
    knows: Callable[[str], bool] | None = None
    """Sessions and holders only of clients of which it says so: their `key` is a client, whatever it begins with."""

    def wants(self, event: Event) -> bool:
        return (
            event.namespace == self.namespace
            and event.key.startswith(self.prefix)
            and (not self.kinds or event.kind in self.kinds)
            and (not self.owner or event.owner == self.owner)
            and (not event.kind.startswith("edge_") or event.owner.startswith(self.sources))
            and (self.knows is None or not event.kind.startswith(_PERSONAL) or self.knows(event.key))
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """An event and the reader's place after it: where a later watch goes on without a gap or a repeat."""

    event: Event
    place: Place


def topic_of(event: Event) -> Topic | None:
    """Whose wait for work the event may end."""
    if event.kind == "reclaim_pending":
        return "reclaims", event.owner
    if event.kind in QUEUE_NEWS:
        return "queue", event.key
    if event.kind in WORKER_NEWS and event.owner:
        return "worker", event.owner
    if event.kind in SHARD_NEWS and event.owner:
        return "shards", event.owner
    return None


Ending = asyncio.Future[tuple[Event, ...] | None]
"""The events that end a request's wait: none at all if it must ask again, None if this node stops."""


class Hub:
    """All watches and waiting requests of one node. `applied` is called in the node's step and must stay cheap."""

    def __init__(self, events_since: EventsSince) -> None:
        self._events_since = events_since
        self.revision = 0
        """Of the last applied entry."""
        self.stopping = False
        self._watches: dict[Watch, None] = {}
        self._expected: dict[tuple[str, bytes], list[Ending]] = {}
        self._beginning: dict[tuple[str, bytes], list[asyncio.Event]] = {}
        """Of requests that may yet come into a queue, or get their lock at once."""
        self._claimants: dict[tuple[str, Topic], dict[asyncio.Event, None]] = {}
        """Requests that wait for work, by namespace and topic, in the order in which they came."""

    # --- the machine's side ---------------------------------------------------------------------------------------

    def applied(self, revision: int, events: Iterable[Event]) -> None:
        self.revision = revision
        answered: dict[tuple[str, bytes], list[Event]] = {}
        woken = False
        for event in events:
            woken = True
            if self._beginning and event.request_id is not None and event.kind in BEGINNINGS:
                self._begin((event.namespace, event.request_id))
            if event.request_id is not None and event.waiter_id and event.kind != "wait_begun" and self._expected:
                answered.setdefault((event.namespace, event.request_id), []).append(event)
            elif self._claimants and (topic := topic_of(event)) is not None:
                for news in self._claimants.get((event.namespace, topic), ()):
                    news.set()
        for key, own in answered.items():
            for future in self._expected.pop(key, ()):
                if not future.done():
                    future.set_result(tuple(own))
        if woken:
            for watch in self._watches:
                watch.wake()

    def restored(self, revision: int) -> None:
        """A snapshot took the place of entries: whoever waits looks again (an answer without events)."""
        self.revision = revision
        self._answer_all(())

    def _answer_all(self, events: tuple[Event, ...] | None) -> None:
        expected, self._expected = self._expected, {}
        for futures in expected.values():
            for future in futures:
                if not future.done():
                    future.set_result(events)
        for key in list(self._beginning):
            self._begin(key)
        self.look_again()

    def _begin(self, key: tuple[str, bytes]) -> None:
        for begun in self._beginning.pop(key, ()):
            begun.set()

    def stop(self) -> None:
        """Ends every wait with None, and wakes the watches so that they see it."""
        self.stopping = True
        self._answer_all(None)

    def look_again(self) -> None:
        """Wakes whoever waits, for a reason that is no event."""
        for watch in self._watches:
            watch.wake()
        for waiting in self._claimants.values():
            for news in waiting:
                news.set()

    # --- requests that wait ---------------------------------------------------------------------------------------

    def expect(self, namespace: str, request_id: bytes) -> Ending:
        """The events that end the wait of a request. Asked for before it is proposed, so none can be missed."""
        future: Ending = asyncio.get_running_loop().create_future()
        if self.stopping:
            future.set_result(None)
        else:
            self._expected.setdefault((namespace, request_id), []).append(future)
        return future

    async def begins(self, namespace: str, request_id: bytes) -> None:
        """Returns when that request has got a place in a queue or its lock, after a snapshot, and when this stops."""
        key, begun = (namespace, request_id), asyncio.Event()
        self._beginning.setdefault(key, []).append(begun)
        try:
            await begun.wait()
        finally:
            waiting = self._beginning.get(key, [])
            if begun in waiting:
                waiting.remove(begun)
            if not waiting:
                self._beginning.pop(key, None)

    def forget(self, namespace: str, request_id: bytes, future: Ending) -> bool:
        """No longer wanted. True if nobody else here waits for the same request."""
        waiting = self._expected.get((namespace, request_id), [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._expected.pop((namespace, request_id), None)
        return not waiting

    def expects(self, namespace: str, request_id: bytes) -> bool:
        """Somebody here waits for that request."""
        return (namespace, request_id) in self._expected

    @property
    def waiting(self) -> int:
        return sum(map(len, self._expected.values()))

    @property
    def claiming(self) -> int:
        return len({news for waiting in self._claimants.values() for news in waiting})

    @contextmanager
    def news(self, namespace: str, topics: Iterable[Topic]) -> Iterator[asyncio.Event]:
        """Set whenever there may be work of one of the topics, a snapshot comes, or this node stops."""
        news = asyncio.Event()
        keys = [(namespace, topic) for topic in topics]
        for key in keys:
            self._claimants.setdefault(key, {})[news] = None
        try:
            yield news
        finally:
            for key in keys:
                waiting = self._claimants.get(key, {})
                waiting.pop(news, None)
                if not waiting:
                    self._claimants.pop(key, None)

    # --- watches --------------------------------------------------------------------------------------------------

    def watch(self, wanted: Filter, after: Place | None = None) -> Watch:
        """From `after` on, or from now."""
        watch = Watch(self, self._events_since, wanted, (self.revision, END) if after is None else after)
        self._watches[watch] = None
        return watch

    def close(self, watch: Watch) -> None:
        self._watches.pop(watch, None)

    @property
    def watches(self) -> int:
        return len(self._watches)

    def watches_of(self, namespace: str) -> int:
        return sum(watch.namespace == namespace for watch in self._watches)

    @property
    def lag(self) -> int:
        """How many revisions the slowest watcher is behind."""
        return max((max(0, self.revision - watch.caught_up_to) for watch in self._watches), default=0)


class Watch:
    """One reader's place. Not shared between tasks."""

    def __init__(self, hub: Hub, events_since: EventsSince, wanted: Filter, after: Place) -> None:
        self._hub = hub
        self._events_since = events_since
        self._wanted = wanted
        self.namespace = wanted.namespace
        self._place = after
        self._news = asyncio.Event()
        self.caught_up_to = after[0]
        self.allowed: Callable[[], bool] = lambda: True
        """Whether the reader may still be told anything."""
        self.silence_s: Callable[[], float] = lambda: 0.0
        """For how long the node has heard of no leader."""

    def begin_after(self, place: Place) -> None:
        """Of a watch that nothing was read from yet."""
        self._place = place
        self.caught_up_to = place[0]

    def wake(self) -> None:
        self._news.set()

    def read(self) -> list[Seen] | Compacted:
        """The next piece of what has happened, in order; empty when it has nothing that the filter lets through."""
        self._news.clear()
        revision, behind = self._place
        found = self._events_since(revision if behind in (0, END) else revision - 1, EVENTS_A_READ)
        if isinstance(found, Compacted):
            return found
        read: list[Seen] = []
        at, offset = revision, 0
        for event in found:
            at, offset = (at, offset + 1) if event.revision == at else (event.revision, 1)
            if (at, offset) <= (revision, behind):
                continue
            self._place = (at, offset)
            if self._wanted.wants(event):
                read.append(Seen(event, self._place))
        if len(found) < EVENTS_A_READ:
            # Everything up to the hub's revision is in the ring's answer, filtered out or not.
            self._place = max(self._place, (self._hub.revision, END))
        else:
            self._place = max(self._place, (found[-1].revision, END))
            self._news.set()
        self.caught_up_to = self._place[0]
        return read

    async def news(self) -> None:
        """Returns when `read` may have something. Others get their turn first, also when there is more already."""
        await asyncio.sleep(0)
        await self._news.wait()

    def close(self) -> None:
        self._hub.close(self)
