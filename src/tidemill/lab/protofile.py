"""Compiles the .proto files we write, as far as they use the language: no protoc, and the text is the judge.

For the tests and `bench formats`.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = re.compile(
    r"(optional|repeated) ([A-Za-z0-9_.]+) ([A-Za-z_][A-Za-z0-9_]*) = (\d+)"
    r"(?: \[json_name = (\"(?:[^\"\\]|\\.)*\")\])?;"
)
_SCALARS = {
    name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bool", "sint32", "sint64", "uint32", "uint64", "float", "double", "string", "bytes")
}


@functools.lru_cache(maxsize=64)
def load_messages(text: str) -> dict[str, Any]:
    """Message classes by full name. What is not understood is an error, not skipped."""
    lines = [line.split("//")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    assert lines.pop(0) == 'syntax = "proto3";'
    package = re.fullmatch(r"package ([A-Za-z0-9_.]+);", lines.pop(0))
    assert package
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package=package[1], syntax="proto3")
    stack: list[Any] = []
    for line in lines:
        if found := re.fullmatch(r"message ([A-Za-z_][A-Za-z0-9_]*) \{(\})?", line):
            made = (stack[-1].nested_type if stack else file.message_type).add(name=found[1])
            if not found[2]:
                stack.append(made)
        elif line == "}":
            stack.pop()
        else:
            match = _FIELD.fullmatch(line)
            assert match, line
            _add(stack[-1], *match.groups(), package=package[1], outer=stack)
    assert not stack
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {
        f"{package[1]}.{name}": message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package[1]}.{name}"))
        for name in names
    }


def first_message(text: str) -> str:
    found = re.search(r"^message (\w+)", text, re.MULTILINE)
    assert found
    return found[1]


def _add(
    message: Any,
    label: str,
    kind: str,
    name: str,
    number: str,
    json_name: str | None,
    *,
    package: str,
    outer: list[Any],
) -> None:
    field = message.field.add(name=name, number=int(number))
    if json_name:
        field.json_name = json.loads(json_name)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        nested = any(inner.name == kind for inner in outer[-1].nested_type)
        field.type_name = f".{package}.{'.'.join(m.name for m in outer)}.{kind}" if nested else f".{package}.{kind}"
    if label == "repeated":
        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        return
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    # proto3 `optional` is a oneof of one field.
    field.proto3_optional = True
    field.oneof_index = len(message.oneof_decl)
    message.oneof_decl.add(name=f"_{name}")
