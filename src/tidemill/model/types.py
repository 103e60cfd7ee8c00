"""What a column holds: the source's own type name, the Arrow type in blocks, and how JSON shows it.

Arrow types are kept as their IPC schema message in JSON (registry, block metadata): Arrow has no parser for
its own type names.
"""

from __future__ import annotations

import base64
import enum
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


class JsonForm(enum.StrEnum):
    """How a value looks in JSON. A form never loses digits: what a JSON number cannot carry exactly is a string."""

    NUMBER = "number"  # integers, floats (NaN and infinities become strings)
    BOOL = "bool"
    STRING = "string"  # text, decimals, dates and times in ISO 8601
    RAW = "raw"  # the value is itself JSON and is embedded as it stands
    BASE64 = "base64"  # bytes
    ARRAY = "array"  # a list; its elements follow their own type


@dataclass(frozen=True, slots=True)
class DataType:
    """`native` is the source's name with its modifiers (`numeric(12,2)`, `public.mood`, `integer[]`)."""

    native: str
    arrow: pa.DataType
    json: JsonForm

    def to_dict(self) -> dict[str, Any]:
        return {"native": self.native, "arrow": _to_text(self.arrow), "json": str(self.json)}

    @classmethod
    def from_dict(cls, doc: dict[str, Any]) -> DataType:
        return cls(doc["native"], _from_text(doc["arrow"]), JsonForm(doc["json"]))


def _to_text(kind: pa.DataType) -> str:
    # Arrow has no parser for its own type names, so the exact form is the IPC schema message.
    return base64.b64encode(pa.schema([("", kind)]).serialize().to_pybytes()).decode()


def _from_text(text: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type
