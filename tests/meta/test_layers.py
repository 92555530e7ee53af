"""Imports only go down (DESIGN §3), each library is met where it belongs, and no two modules import each other."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from tests.meta.sources import Source, imports, planted, refuse, sources

LAYERS: tuple[tuple[str, ...], ...] = (
    ("cluster",),
    ("coordinator.machine",),
    ("coordinator.errors", "coordinator.wire", "coordinator.addresses", "coordinator.events"),
    ("coordinator.trust", "coordinator.tokens"),
    ("coordinator.clientlimits", "coordinator.credentials"),
    ("coordinator.environment",),
    ("coordinator.config", "coordinator.endpoint", "coordinator.backups"),
    ("coordinator.watches", "coordinator.telemetry", "coordinator.lanes", "coordinator.claimturns"),
    ("coordinator.lockwaits",),
    ("coordinator.service",),
    ("coordinator.leading", "coordinator.explaining", "coordinator.claims"),
    (
        "coordinator.sweeper",
        "coordinator.collector",
        "coordinator.auditor",
        "coordinator.dispatch",
        "coordinator.pauses",
    ),
    ("coordinator.levels",),
    ("coordinator.http", "coordinator.client"),
    # Fields, refusals and the view of the node are those of HTTP: one rule for both interfaces. Gossip has its door.
    ("coordinator.rpc", "coordinator.gossip"),
    ("coordinator.authority",),
    ("coordinator.renewal",),
    ("coordinator.node",),
    ("coordinator.devcluster", "coordinator.doctor"),
    ("coordinator.cli",),
)
"""Lowest first. A module may import its own part, and any part in a lower row: parts of one row are strangers.
A new part of `coordinator` needs a row here."""

STRANGERS = {
    "cluster": ("coordinator",),
    # The replicated rules must not depend on how they are replicated.
    "coordinator.machine": ("cluster",),
    # The SDK runs in other people's processes: nothing of the server comes with it.
    "coordinator.client": (
        "cluster",
        "coordinator.machine",
        "coordinator.service",
        "coordinator.leading",
        "coordinator.sweeper",
        "coordinator.collector",
        "coordinator.auditor",
        "coordinator.watches",
        "coordinator.config",
    ),
}

LIBRARIES = {
    "pysyncobj": ("cluster.engine",),
    "aiohttp": ("coordinator.http", "coordinator.client", "coordinator.gossip", "coordinator.cli.gossip"),
    # What aiohttp has headers in.
    "multidict": ("coordinator.http",),
    "uvloop": ("coordinator.cli", "coordinator.node", "cluster.host"),
    "numpy": ("coordinator.machine",),
    "sortedcontainers": ("coordinator.machine",),
    "prometheus_client": ("coordinator.http",),
    "msgpack": ("cluster", "coordinator"),
    "cryptography": ("coordinator.authority",),
    "grpc": ("coordinator.rpc",),
    "google": ("coordinator.rpc",),
    "sqlalchemy": ("coordinator.client.guards_sql",),
}
"""Which parts may import which library; any other library is refused."""

MACHINE_STANDARD_LIBRARY = {
    "__future__", "abc", "array", "binascii", "bisect", "collections", "collections.abc", "dataclasses", "enum",
    "functools", "hashlib", "heapq", "itertools", "math", "operator", "struct", "typing", "types", "zlib",
}  # fmt: skip
"""Data types and pure functions. Nothing that reads a clock, a file, a socket or chance."""


def within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def part_of(module: str) -> tuple[int, str] | None:
    for rank, row in enumerate(LAYERS):
        for part in row:
            if within(module, part):
                return rank, part
    return None


def upward_imports(checked: Iterable[Source]) -> list[str]:
    findings = []
    for source in checked:
        own = part_of(source.module)
        if own is None:
            if source.module != "coordinator":
                findings.append(f"{source.name}: belongs to no layer; give its part a row in LAYERS")
            continue
        for name, line in imports(source).items():
            if name.startswith("."):
                findings.append(f"{source.name}:{line}: relative import; write the whole name")
            other = part_of(name)
            if other is None or other[1] == own[1]:
                continue
            if other[0] >= own[0] or any(within(name, part) for part in STRANGERS.get(own[1], ())):
                findings.append(f"{source.name}:{line}: {own[1]} must not import {name}")
    return findings


def misplaced_libraries(checked: Iterable[Source]) -> list[str]:
    findings = []
    for source in checked:
        for name, line in imports(source).items():
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names or top in ("cluster", "coordinator", ""):
                continue
            if not any(within(source.module, part) for part in LIBRARIES.get(top, ())):
                findings.append(f"{source.name}:{line}: {top} is not imported in this part")
    return findings


def impure_machine_imports(checked: Iterable[Source]) -> list[str]:
    findings = []
    for source in checked:
        for name, line in imports(source).items():
            if name.partition(".")[0] not in sys.stdlib_module_names:
                continue
            if name not in MACHINE_STANDARD_LIBRARY and name.rpartition(".")[0] not in MACHINE_STANDARD_LIBRARY:
                findings.append(f"{source.name}:{line}: the machine must not import {name}")
    return findings


def cycles(checked: Iterable[Source]) -> list[str]:
    modules = {source.module: source for source in checked}
    graph = {
        # Not the packages it is in: what it takes from them are modules, which are there before the package is done.
        module: {
            name
            for name in imports(source, at_import_only=True)
            if name in modules and not f"{module}.".startswith(f"{name}.")
        }
        for module, source in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return ["import cycle: " + " -> ".join(error.args[1])]
    return []


def test_imports_only_go_down() -> None:
    refuse(upward_imports(sources("coordinator", "cluster")))


def test_each_library_is_met_where_it_belongs() -> None:
    refuse(misplaced_libraries(sources("coordinator", "cluster")))


def test_the_machine_imports_data_types_only() -> None:
    refuse(impure_machine_imports(sources("coordinator/machine")))


def test_no_import_cycles() -> None:
    refuse(cycles(sources("coordinator", "cluster")))


def test_planted_breaches_are_found() -> None:
    breaches = [
        ("cluster/node.py", "from coordinator.config import NodeConfig"),
        ("coordinator/machine/leases.py", "import cluster.ports"),
        ("coordinator/machine/leases.py", "from coordinator.service import Service"),
        ("coordinator/service.py", "def late():\n    import coordinator.http.app"),
        ("coordinator/service.py", "from coordinator import http"),
        ("coordinator/service.py", "from . import machine"),
        ("coordinator/client/lease.py", "from coordinator.machine import codec"),
        ("coordinator/helpers.py", ""),
    ]
    for name, text in breaches:
        assert upward_imports([planted(name, text)]), (name, text)
    assert misplaced_libraries([planted("coordinator/service.py", "import aiohttp.web")])
    assert misplaced_libraries([planted("cluster/node.py", "from pysyncobj import SyncObj")])
    assert misplaced_libraries([planted("cluster/node.py", "import requests")])
    assert impure_machine_imports([planted("coordinator/machine/leases.py", "import time")])
    assert impure_machine_imports([planted("coordinator/machine/leases.py", "from datetime import datetime")])
    assert cycles([planted("cluster/a.py", "import cluster.b"), planted("cluster/b.py", "from cluster import a")])


def test_what_is_allowed_passes() -> None:
    allowed = [
        planted("coordinator/http/app.py", "from coordinator.service import Service\nimport aiohttp"),
        planted("coordinator/machine/leases.py", "import numpy as np\nfrom collections.abc import Sequence"),
        planted("cluster/status.py", "if TYPE_CHECKING:\n    from cluster.node import ClusterNode"),
        planted("cluster/node.py", "import cluster.status"),
    ]
    assert upward_imports(allowed) == []
    assert misplaced_libraries(allowed) == []
    assert impure_machine_imports(allowed[1:2]) == []
    assert cycles(allowed) == []
