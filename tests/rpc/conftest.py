"""One cluster for all tests that leave it standing, and the stock client's code."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rpc.nodes import PROTOS, RpcNodes, Stock


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Stock:
    made = tmp_path_factory.mktemp("stock")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"--python_out={made}"]
    subprocess.run([*command, f"--grpc_python_out={made}", "dgc.proto", "renewals.proto"], check=True)
    sys.path.insert(0, str(made))
    try:
        return Stock(*(importlib.import_module(name) for name in ("dgc_pb2", "dgc_pb2_grpc", "renewals_pb2_grpc")))
    finally:
        sys.path.remove(str(made))


@pytest.fixture(scope="package")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpcNodes]:
    running = RpcNodes(tmp_path_factory.mktemp("rpc"))
    try:
        running.start()
        yield running
    finally:
        running.end()


@pytest.fixture
def own_nodes(tmp_path: Path) -> Iterator[RpcNodes]:
    """A cluster to be broken."""
    running = RpcNodes(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.end()


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """A name that no other test has."""
    return lambda name: f"{name}-{next(_NUMBERS)}"


_NUMBERS = iter(range(1_000_000))
