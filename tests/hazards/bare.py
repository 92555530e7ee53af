"""The library as shipped, in memory: what a hazard looks like where no switch of ours can bring it back.

Only the transport (the library's own extension point) and its clock are replaced. Nothing of `cluster` is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pysyncobj.syncobj as library
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

_FAR = 1e9


class BareNetwork:
    def __init__(self) -> None:
        self.now = 1000.0
        self.queues: dict[tuple[str, str], deque[Any]] = {}
        self.transports: dict[str, BareTransport] = {}

    def deliver(self) -> None:
        for (sender, receiver), queue in list(self.queues.items()):
            while queue:
                transport = self.transports[receiver]
                transport._onMessageReceived(transport.nodes[sender], queue.popleft())


class BareTransport(Transport):
    network: BareNetwork

    def __init__(self, core: SyncObj, own: Node, others: list[Node]) -> None:
        super().__init__(core, own, others)
        self.own = own.id
        self.nodes = {node.id: node for node in others}
        self.on_send: Callable[[Any], None] = lambda message: None
        self.network.transports[own.id] = self

    def send(self, node: Node, message: Any) -> bool:
        self.on_send(message)
        self.network.queues.setdefault((self.own, node.id), deque()).append(message)
        return True

    def connect_all(self) -> None:
        for node in self.nodes.values():
            self._onNodeConnected(node)


class BareRegister(SyncObj):
    def __init__(self, name: str, others: list[str], conf: SyncObjConf) -> None:
        super().__init__(
            Node(name), [Node(other) for other in others], conf, nodeClass=Node, transportClass=BareTransport
        )
        self.values: dict[str, Any] = {}

    @replicated
    def put(self, key: str, value: Any) -> Any:
        self.values[key] = value
        return value


@contextmanager
def bare_network() -> Iterator[BareNetwork]:
    """The library's clock is a global: it is put back behind the test."""
    network = BareNetwork()
    BareTransport.network = network
    original, library.monotonicTime = library.monotonicTime, lambda: network.now
    try:
        yield network
    finally:
        library.monotonicTime = original


def make(name: str, names: list[str], kind: type[BareRegister] = BareRegister, **settings: Any) -> BareRegister:
    defaults = {"autoTick": False, "commandsWaitLeader": False, "logCompactionMinEntries": 10**9}
    conf = SyncObjConf(**{**defaults, "logCompactionMinTime": 10**9, **settings})
    node = kind(name, [other for other in names if other != name], conf)
    node._SyncObj__transport.connect_all()
    node._SyncObj__raftElectionDeadline = _FAR
    return node


def elect(node: BareRegister) -> None:
    node._SyncObj__raftElectionDeadline = 0
    node.doTick(0)
    node._SyncObj__raftElectionDeadline = _FAR


def step(nodes: list[BareRegister], network: BareNetwork, times: int) -> None:
    for _ in range(times):
        network.now += 0.11
        for node in nodes:
            node._SyncObj__raftElectionDeadline = network.now + _FAR
            node.doTick(0)
        network.deliver()
