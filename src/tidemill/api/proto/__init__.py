"""The gRPC interface: `operations.proto` and `flows.proto`, which are shipped for clients in any language.

`make docs` compiles them to `interface.binpb`, a descriptor set, from which the messages are made here at import: it
binds nobody to one version of protobuf, as generated modules would. The `.pyi` files beside it are for type checkers.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

SERVICES = ("Health", "Control", "Status", "Metrics", "Flows", "DDL", "Checkpoints", "Streams", "Runs")
PACKAGE = "tidemill.v1"

_POOL = descriptor_pool.Default()


def _load() -> None:
    """Into the pool, imports first: a file comes after those that it imports."""
    assert timestamp_pb2.DESCRIPTOR.pool is _POOL
    content = files(__package__).joinpath("interface.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        _POOL.AddSerializedFile(file.SerializeToString())


_load()


def messages(name: str) -> dict[str, Any]:
    """Message classes, enums and their values, and `DESCRIPTOR`: what a generated module would have."""
    file = _POOL.FindFileByName(f"tidemill/api/proto/{name}.proto")
    found: dict[str, Any] = {"DESCRIPTOR": file}
    for kind, descriptor in file.message_types_by_name.items():
        found[kind] = message_factory.GetMessageClass(descriptor)
    for kind, enum in file.enum_types_by_name.items():
        found[kind] = EnumTypeWrapper(enum)
        found.update({value.name: value.number for value in enum.values})
    return found


def service(name: str) -> Any:
    """The descriptor of one of `SERVICES`."""
    return _POOL.FindServiceByName(f"{PACKAGE}.{name}")
