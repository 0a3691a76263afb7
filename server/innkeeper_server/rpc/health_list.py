"""The messages of the health protocol's `List`, which is younger than its other methods.

Owns `ListRequest` and `ListResponse`: the library's where it has them, else the same made here, in
a pool of their own, so that a newer library can never clash with them.
"""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

__all__ = ["ListRequest", "ListResponse"]

_PACKAGE = health_pb2.DESCRIPTOR.package


def _type(name: str) -> type[Message]:
    if name in health_pb2.DESCRIPTOR.message_types_by_name:
        known: type[Message] = getattr(health_pb2, name)
        return known
    return GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _newer() -> FileDescriptorProto:
    """The library's file with the two messages added."""
    file = FileDescriptorProto()
    health_pb2.DESCRIPTOR.CopyToProto(file)
    file.message_type.add(name="HealthListRequest")
    response = file.message_type.add(name="HealthListResponse")
    entry = response.nested_type.add(name="StatusesEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, FieldDescriptorProto.TYPE_STRING)
    _field(entry, "value", 2, FieldDescriptorProto.TYPE_MESSAGE, "HealthCheckResponse")
    statuses = _field(
        response,
        "statuses",
        1,
        FieldDescriptorProto.TYPE_MESSAGE,
        "HealthListResponse.StatusesEntry",
    )
    statuses.label = FieldDescriptorProto.LABEL_REPEATED
    return file


def _field(
    owner: DescriptorProto,
    name: str,
    number: int,
    type: FieldDescriptorProto.Type.ValueType,
    message: str = "",
) -> FieldDescriptorProto:
    field = owner.field.add(
        name=name, number=number, type=type, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    if message:
        field.type_name = f".{_PACKAGE}.{message}"
    return field


_pool = DescriptorPool()
if "HealthListRequest" not in health_pb2.DESCRIPTOR.message_types_by_name:
    _pool.Add(_newer())

ListRequest = _type("HealthListRequest")
ListResponse = _type("HealthListResponse")
