"""The contract is the source document's, to the letter, and what the node serves is what protoc makes of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

from coordinator.rpc.messages import described
from tests.cli.processes import REPOSITORY
from tests.rpc.nodes import PROTOS

CONTRACT = """
syntax = "proto3";
package database.dgc.v1;
service DistributedGCService {
rpc AcquireLease(AcquireLeaseRequest) returns (AcquireLeaseResponse);
rpc RenewLease(RenewLeaseRequest) returns (RenewLeaseResponse);
rpc ReleaseReference(ReleaseReferenceRequest) returns (ReleaseReferenceResponse);
}
message AcquireLeaseRequest {
string resource_id = 1;
string client_id = 2;
int64 lease_duration_ms = 3;
}
message AcquireLeaseResponse {
string lease_id = 1;
int64 expires_at_epoch_ms = 2;
bool success = 3;
}
message RenewLeaseRequest {
string lease_id = 1;
string client_id = 2;
int64 extend_duration_ms = 3;
}
message RenewLeaseResponse {
bool success = 1;
int64 new_expires_at_epoch_ms = 2;
}
message ReleaseReferenceRequest {
string resource_id = 1;
string client_id = 2;
}
message ReleaseReferenceResponse {
bool success = 1;
int32 remaining_reference_count = 2;
}
"""


def test_the_shipped_file_is_the_contract_plus_comments() -> None:
    shipped = re.sub(r"//.*", "", (PROTOS / "dgc.proto").read_text())
    assert shipped.split() == CONTRACT.split()


def test_the_node_serves_what_protoc_makes_of_the_files(tmp_path: Path) -> None:
    found = tmp_path / "described"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={found}", "dgc.proto", "renewals.proto"], check=True)
    compiled = descriptor_pb2.FileDescriptorSet.FromString(found.read_bytes())
    assert list(compiled.file) == described()


def test_a_node_without_grpc_needs_no_extra() -> None:
    program = "import sys; sys.modules.update(grpc=None, google=None); import coordinator.node, coordinator.cli"
    ran = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
