"""A piece of a table's changes as the loads that bring its keys to their last state.

Within a piece only the last state of a key counts, so each key stands in exactly one load, once. Loads differ by the
columns they bring: keys whose rows are complete, keys with the same set of columns that nobody sent (a partial update,
which leaves those as they are), and keys that are deleted. Since no key is in two of them, their order does not matter.

Every load is conditional (`merge_condition`): the server compares versions, and keeps a row that is newer than ours. It
knows no conditional delete, so a deleted row is marked, by an update like any other.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.encoding.program import Program
from tidemill.model.block import Block, Op
from tidemill.model.types import JsonForm
from tidemill.sinks._shared.images import Verdicts
from tidemill.sinks._shared.upserts import Upsert, upsert
from tidemill.sinks.starrocks.types import fit, form_of, timestamps

OP_TYPE, IS_DELETED, SYNCED_AT, VERSION = (
    "tidemill_op_type", "tidemill_is_deleted", "tidemill_synced_at", "tidemill_cdc_version",
)  # fmt: skip
AUDIT = {OP_TYPE: "VARCHAR(16)", IS_DELETED: "BOOLEAN", SYNCED_AT: "DATETIME", VERSION: "BIGINT"}
_AT_DESTINATION, _DELETED, _ELSEWHERE = -1, -2, -3


@dataclass(frozen=True, slots=True)
class LoadPiece:
    """Rows of one load. `partial`: columns besides these stay as they are. `holes`: they must be there to stay. `dead`:
    the rows are marked as deleted."""

    rows: pa.Table
    forms: Mapping[str, JsonForm]
    keys: tuple[str, ...]
    partial: bool
    holes: bool = False
    dead: bool = False

    @property
    def columns(self) -> str:
        """The header: every name quoted."""
        return ",".join(f"`{name}`" for name in self.rows.column_names)

    @property
    def paths(self) -> str:
        """The header that says which member of an object is which column, in the same order."""
        names = (name if name.isidentifier() and name.isascii() else f'"{name}"' for name in self.rows.column_names)
        return json.dumps([f"$.{name}" for name in names])

    def key_values(self) -> list[tuple[Any, ...]]:
        """As the destination has them: bytes in base64."""
        columns = (self.rows.column(key).to_pylist() for key in self.keys)
        rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True))
        return [tuple(base64.b64encode(v).decode() if isinstance(v, bytes) else v for v in row) for row in rows]

    @property
    def offsets(self) -> list[int]:
        found: list[int] = self.rows.column(VERSION).to_pylist()
        return found

    def take(self, rows: np.ndarray[Any, Any]) -> LoadPiece:
        return replace(self, rows=self.rows.take(pa.array(rows)))

    def slice(self, first: int, count: int) -> LoadPiece:
        return replace(self, rows=self.rows.slice(first, count))

    def body(self) -> bytes:
        """A JSON array of objects."""
        rows = self.rows.combine_chunks()
        program = Program(rows.num_rows)
        program.text(b"{")
        for name in rows.column_names:
            column = rows.column(name)
            values = column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
            program.field(name, values, self.forms.get(name, JsonForm.STRING))
        program.close(b"},\n")
        text = program.run().data
        return b"[" + text.slice(0, max(0, text.size - 2)).to_pybytes() + b"]"


def settle(
    block: Block, kinds: Mapping[str, str], base: int, *, extra: bool, verdicts: Verdicts
) -> Iterator[LoadPiece]:
    """`extra`: the table has columns besides, which stay. Nothing is yielded once something is condemned."""
    rows = upsert(block, kinds, fit, verdicts, lambda kind, column: False)
    if verdicts.reasons:
        return
    own, old = _number(rows)
    names = list(rows.columns)
    holes = np.zeros((len(names), block.rows), bool)
    for i, name in enumerate(names):
        if name in rows.holes:
            holes[i] = rows.holes[name]
    total = int(max(own.max(initial=-1), old.max(initial=-1))) + 1
    last = np.full((len(names), total), _AT_DESTINATION, np.int64)
    event, deleted = np.full(total, -1, np.int64), np.zeros(total, bool)
    _follow(holes, own, old, rows.moved, rows.gone, last, event, deleted)
    touched = np.flatnonzero(event >= 0)
    touched = touched[np.argsort(event[touched], kind="stable")]
    alive, dead = touched[~deleted[touched]], touched[deleted[touched]]
    lost = (last[:, alive] <= _DELETED).any(axis=0) if names else np.zeros(len(alive), bool)
    verdicts.condemn(
        rows.offsets, np.isin(np.arange(block.rows), event[alive[lost]]),
        "the source did not send the unchanged columns, and the row was deleted before or came from another key; "
        "REPLICA IDENTITY FULL brings them",
    )  # fmt: skip
    if verdicts.reasons:
        return
    audit = _audit(block, base)
    forms = {name: form_of(v, kinds[name]) for name, v in {**rows.keys, **rows.columns}.items()}
    for chosen, present in _groups(last, alive):
        at = event[chosen]
        columns = {name: _take(values, at) for name, values in rows.keys.items()}
        for i in present:
            columns[names[i]] = _take(rows.columns[names[i]], last[i, chosen])
        columns |= {name: _take(values, at) for name, values in audit.items()}
        columns[IS_DELETED] = pa.array(np.zeros(len(chosen), bool))
        holed = len(present) < len(names)
        yield LoadPiece(pa.table(columns), forms, tuple(rows.keys), partial=holed or extra, holes=holed)
    if len(dead):
        yield _deletes(rows, dead, event[dead], own, audit, forms)


def _deletes(rows: Upsert, dead: Any, events: Any, own: Any, audit: Mapping[str, pa.Array], forms: Any) -> LoadPiece:
    at = pa.array(events)
    by_own = pa.array(own[events] == dead)  # else the row went to another key, and this is the one it left
    columns = {n: pc.if_else(by_own, v.take(at), rows.old_keys[n].take(at)) for n, v in rows.keys.items()}
    columns |= {name: values.take(at) for name, values in audit.items()}
    columns[OP_TYPE] = pa.array(["delete"] * len(dead))
    columns[IS_DELETED] = pa.array(np.ones(len(dead), bool))
    return LoadPiece(pa.table(columns), forms, tuple(rows.keys), partial=True, dead=True)


def _audit(block: Block, base: int) -> dict[str, pa.Array]:
    """When: of the commit, not of a clock (invariant 4)."""
    labels = pa.array([None, *(op.label for op in Op)], pa.string())
    versions = pa.array(block.offsets().astype(np.int64) + base, pa.int64())
    commit = block.column("commit_time")
    committed_at = pa.nulls(block.rows, pa.string()) if commit is None else timestamps(commit)
    return {OP_TYPE: labels.take(block.batch.column("op")), SYNCED_AT: committed_at, VERSION: versions}


def _groups(last: Any, alive: Any) -> Iterator[tuple[Any, list[int]]]:
    """Keys with the same set of known columns, and that set, by number."""
    missing = last[:, alive] == _AT_DESTINATION
    everything = list(range(len(last)))
    holed = missing.any(axis=0)
    if not holed.all():
        yield alive[~holed], everything
    if holed.any():
        packed = np.ascontiguousarray(np.packbits(missing[:, holed], axis=0).T)
        patterns = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
        for pattern in np.unique(patterns):
            chosen = alive[holed][patterns == pattern]
            yield chosen, [i for i in everything if last[i, chosen[0]] != _AT_DESTINATION]


def _take(values: pa.Array, at: Any) -> pa.Array:
    if len(at) == len(values) and (at == np.arange(len(at))).all():
        return values
    return values.take(pa.array(at))


def _number(rows: Upsert) -> tuple[Any, Any]:
    """A number per key value: of the rows, and of where moved rows stood."""
    count, moves = len(rows.offsets), bool(rows.moved.any())
    codes: Any = None
    for name, ours in rows.keys.items():
        values = pa.concat_arrays([ours, rows.old_keys[name].cast(ours.type)]) if moves else ours
        encoded = values.dictionary_encode(null_encoding="encode")
        index = encoded.indices.to_numpy().astype(np.int64)
        if codes is not None:  # numbers of pairs, made dense again so that they never overflow
            pairs = pa.array(codes * (len(encoded.dictionary) + 1) + index)
            index = pairs.dictionary_encode().indices.to_numpy().astype(np.int64)
        codes = index
    return codes[:count], codes[count:] if moves else np.zeros(count, np.int64)


@njit(cache=True, nogil=True)
def _follow(holes, own, old, moved, gone, last, event, deleted):  # type: ignore[no-untyped-def]
    """`last[column, key]`: the row that has the key's value, or where else it is."""
    columns = len(holes)
    found = np.empty(columns, np.int64)
    for row in range(len(own)):
        for column in range(columns):
            found[column] = row
            if holes[column, row]:
                found[column] = last[column, old[row] if moved[row] else own[row]]
                if moved[row] and found[column] == -1:
                    found[column] = -3
        if moved[row]:
            last[:, old[row]] = -2
            event[old[row]], deleted[old[row]] = row, True
        for column in range(columns):
            last[column, own[row]] = -2 if gone[row] else found[column]
        event[own[row]], deleted[own[row]] = row, gone[row]
