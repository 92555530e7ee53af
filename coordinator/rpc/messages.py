"""The messages and services of the .proto files, made when this is imported.

Generated code would tie every installation to the one version of protobuf that made it. A test compiles the .proto
files and finds the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "database.dgc.v1"
LEASES = "DistributedGCService"
RENEWALS = "LeaseRenewalService"

_FIELD = descriptor_pb2.FieldDescriptorProto
_TEXT, _INT64, _INT32, _BOOL = _FIELD.TYPE_STRING, _FIELD.TYPE_INT64, _FIELD.TYPE_INT32, _FIELD.TYPE_BOOL

_MESSAGES: dict[str, dict[str, int]] = {
    "AcquireLeaseRequest": {"resource_id": _TEXT, "client_id": _TEXT, "lease_duration_ms": _INT64},
    "AcquireLeaseResponse": {"lease_id": _TEXT, "expires_at_epoch_ms": _INT64, "success": _BOOL},
    "RenewLeaseRequest": {"lease_id": _TEXT, "client_id": _TEXT, "extend_duration_ms": _INT64},
    "RenewLeaseResponse": {"success": _BOOL, "new_expires_at_epoch_ms": _INT64},
    "ReleaseReferenceRequest": {"resource_id": _TEXT, "client_id": _TEXT},
    "ReleaseReferenceResponse": {"success": _BOOL, "remaining_reference_count": _INT32},
}
"""A field's number is its place, from 1."""


@dataclass(frozen=True, slots=True)
class Method:
    service: str
    name: str
    message: str
    streams: bool = False

    @property
    def request(self) -> str:
        return f"{self.message}Request"

    @property
    def response(self) -> str:
        return f"{self.message}Response"


METHODS = (
    Method(LEASES, "AcquireLease", "AcquireLease"),
    Method(LEASES, "RenewLease", "RenewLease"),
    Method(LEASES, "ReleaseReference", "ReleaseReference"),
    Method(RENEWALS, "RenewLeases", "RenewLease", streams=True),
)


def described() -> list[Any]:
    """Both files as protoc describes them, each after what it imports."""
    leases = descriptor_pb2.FileDescriptorProto(name="dgc.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = leases.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), start=1):
            message.field.add(
                name=field, number=number, type=kind, label=_FIELD.LABEL_OPTIONAL, json_name=_camel(field)
            )
    renewals = descriptor_pb2.FileDescriptorProto(name="renewals.proto", package=PACKAGE, syntax="proto3")
    renewals.dependency.append(leases.name)
    for file, name in ((leases, LEASES), (renewals, RENEWALS)):
        service = file.service.add(name=name)
        for method in METHODS:
            if method.service == name:
                added = service.method.add(name=method.name)
                added.input_type = f".{PACKAGE}.{method.request}"
                added.output_type = f".{PACKAGE}.{method.response}"
                if method.streams:
                    added.client_streaming = added.server_streaming = True
    return [leases, renewals]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _classes() -> dict[str, Any]:
    # A pool of our own: a client's generated code may be in the same process, under the same names.
    pool = descriptor_pool.DescriptorPool()
    for file in described():
        pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


CLASSES = _classes()
