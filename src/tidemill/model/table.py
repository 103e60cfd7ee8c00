"""A table at one schema version, as its source described it. Blocks carry it; the registry numbers it."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from tidemill.model.types import DataType


@dataclass(frozen=True, slots=True)
class Initial:
    """What the rows that were there got when a column was added: `value`, one value of the column's Arrow type, which
    may be NULL; or `unknown`, which ends the sentence "their value is not known: …"."""

    value: pa.Scalar | None = None
    unknown: str = ""

    def to_dict(self) -> dict[str, str]:
        if self.value is None:
            return {"unknown": self.unknown}
        batch = pa.RecordBatch.from_arrays([pa.repeat(self.value, 1)], [""])
        return {"value": base64.b64encode(batch.serialize().to_pybytes()).decode()}

    @classmethod
    def from_dict(cls, doc: dict[str, str], kind: pa.DataType) -> Initial:
        if "value" not in doc:
            return cls(unknown=doc["unknown"])
        batch = pa.ipc.read_record_batch(base64.b64decode(doc["value"]), pa.schema([("", kind)]))
        return cls(batch.column(0)[0])


@dataclass(frozen=True, slots=True)
class Column:
    """`type` says what Arrow holds and how the source calls it.

    `origin` is what the source knows the column by whatever its name is (PostgreSQL: table OID and attribute number);
    empty where it has no such thing. `initial` is None where nothing was found out about it: the column was there when
    capture began. Neither is structure: columns are not told apart by them.
    """

    name: str
    type: DataType
    nullable: bool = True
    generated: bool = False
    origin: str = field(default="", compare=False)
    initial: Initial | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        doc = {"name": self.name, "nullable": self.nullable, "generated": self.generated, **self.type.to_dict()}
        if self.origin:
            doc["origin"] = self.origin
        if self.initial is not None:
            doc["initial"] = self.initial.to_dict()
        return doc

    @classmethod
    def from_dict(cls, doc: dict[str, Any]) -> Column:
        kind, initial = DataType.from_dict(doc), doc.get("initial")
        return cls(
            doc["name"], kind, nullable=doc["nullable"], generated=doc["generated"], origin=doc.get("origin", ""),
            initial=None if initial is None else Initial.from_dict(initial, kind.arrow),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """One version of a table. `fingerprint` covers structure only, so the same structure is the same version.

    `version` counts per table from 1 and `sequence` counts over all tables of a source; both are 0 until the
    registry has seen the table. `identity` is what an UPDATE or DELETE brings of the old row:
    `key` (its key columns), `full` (all of them) or `nothing`. `renamed` is what is known of this version against
    those before it: (old name, new name) of columns; never guessed. It may name a column that was renamed long ago.
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

    @property
    def lineage(self) -> object:
        """What a sink that follows a table compares: its structure, and how that came to be. A structure that comes
        back may have other columns under the same names."""
        return self.fingerprint, self.renamed, tuple(c.origin for c in self.columns)

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
                "columns": [c.to_dict() for c in self.columns],
            }
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: bytes | str) -> Table:
        doc: dict[str, Any] = orjson.loads(text)
        return cls(
            doc["database"], doc["schema"], doc["name"], tuple(map(Column.from_dict, doc["columns"])),
            tuple(doc["key"]), doc["identity"], doc["version"], doc["sequence"], doc["fingerprint"],
            tuple((old, new) for old, new in doc.get("renamed", ())),
        )  # fmt: skip
