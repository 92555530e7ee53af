"""Resources and queues for code without an event loop: `client.resources` and `client.queues` of `SyncClient`."""

from __future__ import annotations

from typing import overload

from coordinator.client.blocking import Seen, iterating, waiting
from coordinator.client.queues import Queues
from coordinator.client.resources import Explanation, Loss, Resources


class SyncResources(Seen[Resources]):
    register = waiting(Resources.register)
    register_many = waiting(Resources.register_many)
    get = waiting(Resources.get)
    list = iterating(Resources.list)
    delete = waiting(Resources.delete)
    add_edge = waiting(Resources.add_edge)
    add_edges = waiting(Resources.add_edges)
    remove_edge = waiting(Resources.remove_edge)
    edges = iterating(Resources.edges)

    @overload
    def explain(self, resource_id: str, *, timeout: float | None = None) -> Explanation: ...

    @overload
    def explain(self, resource_id: str, *, what_if: str, timeout: float | None = None) -> Loss: ...

    def explain(
        self, resource_id: str, *, what_if: str | None = None, timeout: float | None = None
    ) -> Explanation | Loss:
        """Why it is there; with `what_if`, what would go with what that names."""
        if what_if is None:
            return self._thread.run(self._seen.explain(resource_id, timeout=timeout))
        return self._thread.run(self._seen.explain(resource_id, what_if=what_if, timeout=timeout))


class SyncQueues(Seen[Queues]):
    def put(self, queue: str, *, timeout: float | None = None, **rules: int | float) -> bool:
        """Creates it, or changes its rules: whether it is new. See `Queues.put`."""
        return self._thread.run(self._seen.put(queue, timeout=timeout, **rules))

    get = waiting(Queues.get)
    list = iterating(Queues.list)
    delete = waiting(Queues.delete)
    pause = waiting(Queues.pause)
    drain = waiting(Queues.drain)
    resume = waiting(Queues.resume)
    enqueue = waiting(Queues.enqueue)
    enqueue_many = waiting(Queues.enqueue_many)
    task = waiting(Queues.task)
    tasks = iterating(Queues.tasks)
    revoke = waiting(Queues.revoke)
    drop = waiting(Queues.drop)
    retry = waiting(Queues.retry)
    purge = waiting(Queues.purge)
    put_shards = waiting(Queues.put_shards)
    shards = iterating(Queues.shards)
    workers = iterating(Queues.workers)
    remove_worker = waiting(Queues.remove_worker)
