"""What a chunk's read needs of its table, and the `COPY` that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from tidemill.model.snapshot import Bound, Chunk, SnapshotTable
from tidemill.sources.postgres.relations import identifier
from tidemill.sources.postgres.snapshot.chunk_ranges import ChunkKey, page_conditions


@dataclass(frozen=True, slots=True)
class TableToken:
    """What a chunk's read needs of its table. `condition` is the publication's row filter."""

    oid: int
    publication: int
    signature: str
    key_types: tuple[str, ...]
    condition: str
    pages: bool = False  # without a key it may be read in ranges of pages
    most: int = -1  # it had not more rows when it was described; -1: not known
    schemas: tuple[str, ...] = ()  # of the operators of the key's types, if not all are the system's

    def to_json(self) -> str:
        return orjson.dumps(
            [
                self.oid, self.publication, self.signature, self.key_types, self.condition, self.pages, self.most,
                self.schemas,
            ]
        ).decode()  # fmt: skip

    def key(self, names: Sequence[str]) -> ChunkKey:
        return ChunkKey(names, self.key_types, self.schemas)

    @classmethod
    def from_json(cls, text: str) -> TableToken:
        oid, publication, signature, types, condition, pages, most, *schemas = orjson.loads(text)
        return cls(oid, publication, signature, tuple(types), condition, pages, most, *map(tuple, schemas))


def table_name(table: SnapshotTable) -> str:
    return identifier(table.table.schema, table.table.name)


def copy_command(chunk: Chunk, table: SnapshotTable, token: TableToken) -> str:
    key = token.key(table.key)
    conditions = [f"({condition})" for condition in (token.condition, chunk.where) if condition]
    if not table.key:
        conditions += page_conditions(chunk)
    elif chunk.lower is not None:
        conditions.append(key.compare(">", chunk.lower))
    if table.key and chunk.upper is not None:
        conditions.append(key.compare("<=", chunk.upper))
    if chunk.points:
        points = [key.compare("=", _print(point, token)) for point in chunk.points]
        conditions.append(f"({' OR '.join(points)})")
    columns = ", ".join(identifier(c.name) for c in table.table.columns)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"COPY (SELECT {columns} FROM ONLY {chunk.part or table_name(table)}{where}) TO STDOUT"


def _print(point: Bound, token: TableToken) -> Bound:
    """Bytes come in hex, without the prefix that PostgreSQL has for them."""
    return tuple(f"\\x{text}" if kind == "bytea" else text for text, kind in zip(point, token.key_types, strict=True))
