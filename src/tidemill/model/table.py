"""A table at one schema version, as its source described it. Blocks carry it; the registry numbers it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from tidemill.model.types import DataType


@dataclass(frozen=True, slots=True)
class Column:
    """`type` says what Arrow holds and how the source calls it."""

    name: str
    type: DataType
    nullable: bool = True
    generated: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One version of a table. `fingerprint` covers structure only, so the same structure is the same version.

    `version` counts per table from 1 and `sequence` counts over all tables of a source; both are 0 until the
    registry has seen the table. `identity` is what an UPDATE or DELETE brings of the old row:
    `key` (its key columns), `full` (all of them) or `nothing`. `renamed` is what is known of this version against the
    one before it: (old name, new name) of columns; never guessed.
    """

    database: str
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    identity: str = "key"
    version: int = 0
    sequence: int = 0
    fingerprint: str = field(default="")
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def arrow_struct(self) -> pa.DataType:
        return pa.struct([pa.field(c.name, c.type.arrow) for c in self.columns])

    def key_columns(self) -> tuple[Column, ...]:
        by_name = {c.name: c for c in self.columns}
        return tuple(by_name[name] for name in self.key)

    def with_fingerprint(self) -> Table:
        structure = [
            self.database, self.schema, self.name, list(self.key), self.identity,
            [[c.name, c.type.native, str(c.type.arrow), c.nullable, c.generated] for c in self.columns],
        ]  # fmt: skip
        return replace(self, fingerprint=hashlib.sha256(orjson.dumps(structure)).hexdigest())

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "database": self.database, "schema": self.schema, "name": self.name, "key": list(self.key),
                "identity": self.identity, "version": self.version, "sequence": self.sequence,
                "fingerprint": self.fingerprint, "renamed": [list(pair) for pair in self.renamed],
                "columns": [
                    {"name": c.name, "nullable": c.nullable, "generated": c.generated, **c.type.to_dict()}
                    for c in self.columns
                ],
            }
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: bytes | str) -> Table:
        doc: dict[str, Any] = orjson.loads(text)
        columns = tuple(
            Column(c["name"], DataType.from_dict(c), nullable=c["nullable"], generated=c["generated"])
            for c in doc["columns"]
        )
        return cls(
            doc["database"], doc["schema"], doc["name"], columns, tuple(doc["key"]), doc["identity"],
            doc["version"], doc["sequence"], doc["fingerprint"],
            tuple((old, new) for old, new in doc.get("renamed", ())),
        )  # fmt: skip
