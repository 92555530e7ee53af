"""Namespaces: who may have how much of what. Only `default` exists from the start; no other springs up by use."""

from __future__ import annotations

from dataclasses import dataclass, fields

from coordinator.machine.commands import DeleteNamespace, PutNamespace
from coordinator.machine.limits import (
    DEFAULT_EDGES,
    DEFAULT_HOLDERS,
    DEFAULT_LEASES,
    DEFAULT_LOCKS,
    DEFAULT_NAME_BYTES,
    DEFAULT_QUEUES,
    DEFAULT_REQUESTS_PER_S,
    DEFAULT_RESOURCES,
    DEFAULT_SESSIONS,
    DEFAULT_TASK_BYTES,
    DEFAULT_TASKS,
    DEFAULT_TOMBSTONES,
    DEFAULT_WAITERS,
    MAX_NAMESPACES,
)
from coordinator.machine.results import Denied, NamespaceChanged, Result

LEASES, LOCKS, WAITERS, SESSIONS, RESOURCES, EDGES, TASKS, QUEUES, HOLDERS, TOMBSTONES, TASK_BYTES = range(11)
COUNTED = (
    "leases", "locks", "waiters", "sessions", "resources", "edges", "tasks", "queues", "holders", "tombstones",
    "task_bytes",
)  # fmt: skip
"""What is counted here, by its place in `Namespace.used`; bytes of names are counted by the name table, and requests
by each node for itself."""


@dataclass(frozen=True, slots=True)
class Quotas:
    leases: int = DEFAULT_LEASES
    locks: int = DEFAULT_LOCKS
    waiters: int = DEFAULT_WAITERS
    sessions: int = DEFAULT_SESSIONS
    name_bytes: int = DEFAULT_NAME_BYTES
    resources: int = DEFAULT_RESOURCES
    edges: int = DEFAULT_EDGES
    tasks: int = DEFAULT_TASKS
    queues: int = DEFAULT_QUEUES
    holders: int = DEFAULT_HOLDERS
    tombstones: int = DEFAULT_TOMBSTONES
    """Together with the resources of which holders have copies."""
    task_bytes: int = DEFAULT_TASK_BYTES
    """Of payloads of tasks that are not done."""
    requests_per_s: int = DEFAULT_REQUESTS_PER_S


@dataclass(slots=True)
class Namespace:
    name: str
    number: int
    quotas: Quotas
    used: list[int]
    acyclic: bool = False

    def over(self, counted: int, more: int = 1) -> Denied | None:
        """The denial, if `more` of it would be too many."""
        what = COUNTED[counted]
        limit: int = getattr(self.quotas, what)
        if not more or self.used[counted] + more <= limit:
            return None
        return over_quota(self.name, what, limit)


def over_quota(namespace: str, what: str, limit: int) -> Denied:
    message = f"namespace {namespace} may have {limit} {what}; free some or have its quota raised"
    return Denied("quota_exceeded", message, {"quota": what, "limit": limit})


class Namespaces:
    def __init__(self) -> None:
        self.by_name: dict[str, Namespace] = {}
        self.by_number: dict[int, Namespace] = {}
        self.add("default", 0, Quotas())

    def add(self, name: str, number: int, quotas: Quotas) -> Namespace:
        namespace = Namespace(name, number, quotas, [0] * len(COUNTED))
        self.by_name[name] = self.by_number[number] = namespace
        return namespace

    def put(self, name: str, command: PutNamespace) -> Result:
        quotas = Quotas(*(getattr(command, field.name) for field in fields(Quotas)))
        known = self.by_name.get(name)
        if known is not None:
            if command.acyclic and not known.acyclic and known.used[EDGES]:
                message = f"namespace {name} has edges; acyclic can be switched on only while there are none"
                return Denied("namespace_in_use", message, {"field": "acyclic"})
            known.quotas, known.acyclic = quotas, command.acyclic
            return NamespaceChanged()
        if len(self.by_name) >= MAX_NAMESPACES:
            return Denied("capacity_exceeded", f"there may be {MAX_NAMESPACES} namespaces; delete one that is empty")
        number = 0
        while number in self.by_number:
            number += 1
        self.add(name, number, quotas).acyclic = command.acyclic
        return NamespaceChanged()

    def delete(self, namespace: Namespace, name_bytes: int, _: DeleteNamespace) -> Result:
        if namespace.number == 0:
            return Denied("namespace_in_use", "the default namespace cannot be deleted")
        if any(namespace.used) or name_bytes:
            return Denied("namespace_in_use", f"namespace {namespace.name} is not empty; end what is in it first")
        del self.by_name[namespace.name], self.by_number[namespace.number]
        return NamespaceChanged()
