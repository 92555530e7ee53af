"""Nobody gets a task, or a shard, that another has; no token is given twice; nothing is completed twice, or lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.machine.events import Compacted, Event
from coordinator.machine.invariants import check
from coordinator.machine.machine import Machine
from coordinator.machine.results import Result
from coordinator.machine.taskrows import DONE, HELD
from tests.checkers.violation import Violation

CHECK_EVERY = 100


class WatchedTasks(Machine):
    """The product's machine, watched through the events of every entry."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._open: set[int] = set()
        """Tasks that are known and not done, dropped or completed."""
        self._shards: dict[str, tuple[str, int]] = {}

    def apply(self, index: int, now_ms: int, commands: Sequence[bytes]) -> list[Result]:
        results = super().apply(index, now_ms, commands)
        events = self.events_since(index - 1)
        if isinstance(events, Compacted):
            raise Violation("one_owner", "the events of the last entry are gone")
        for event in events:
            if event.kind.startswith("task_"):
                self._watch_task(event)
            elif event.kind.startswith("shard_"):
                self._watch_shard(event)
        if index % CHECK_EVERY == 0:
            check(self.state)
            lost = self._open - self._known()
            if lost:
                raise Violation("at_least_once", f"tasks {sorted(lost)} are gone and were not done")
        return results

    def restore(self, chunks: Iterable[bytes]) -> None:
        super().restore(chunks)
        table = self.state.tasks
        slots = table.column("state")[: table.used].nonzero()[0].tolist()
        self._newest = {self.state.task_id(slot): table.token[slot] for slot in slots}
        self._held = {self.state.task_id(slot): table.token[slot] for slot in slots if table.state[slot] in HELD}
        self._open = {self.state.task_id(slot) for slot in slots if table.state[slot] != DONE}
        self._shards = {}
        for queue in self.state.task_queues.values():
            for shard in queue.shards.values():
                if shard.worker:
                    owner = self.state.names.text(self.state.workers[shard.worker].client)
                    self._shards[f"{queue.text}/{shard.name}"] = (owner, shard.token)

    def _known(self) -> set[int]:
        table = self.state.tasks
        return {self.state.task_id(slot) for slot in table.column("state")[: table.used].nonzero()[0].tolist()}

    def _watch_task(self, event: Event) -> None:
        number, token = event.number, event.fencing_token
        match event.kind:
            case "task_leased":
                if number in self._held:
                    raise Violation("one_owner", f"task {number} was handed to {event.owner}, and another has it")
                if token <= self._newest.get(number, 0):
                    raise Violation("one_owner", f"task {number} was handed out under the old token {token}")
                self._newest[number] = self._held[number] = token
            case "task_ready":
                self._held.pop(number, None)
                self._open.add(number)
            case "task_completed":
                if self._held.pop(number, None) != token:
                    raise Violation("one_owner", f"task {number} was completed under {token}, which is not the newest")
                if number not in self._open:
                    raise Violation("one_owner", f"task {number} was completed twice")
                self._open.discard(number)
            case "task_dropped":
                self._open.discard(number)
                self._held.pop(number, None)
            case "task_revoked" | "task_failed" | "task_dead":
                self._held.pop(number, None)

    def _watch_shard(self, event: Event) -> None:
        own = (event.owner, event.fencing_token)
        before = self._shards.get(event.key)
        if event.kind == "shard_assigned":
            if before is not None and before != own:
                raise Violation("one_owner", f"shard {event.key} was given to {own}, and {before} has it")
            self._shards[event.key] = own
        elif before != own:
            raise Violation("one_owner", f"shard {event.key} was asked back from {own}, and {before} has it")
        elif event.kind == "shard_released":
            del self._shards[event.key]
