"""Tables with rows that were there before the pipeline captured them and that nobody copies: `run` warns of them when a
pipeline without `snapshot` begins, and `doctor` for as long as they stand.

Which tables those are shows only at the beginning: later the stream has brought rows to others. `met_tables.json` in
the pipeline's state directory has it. Without the file every table with rows may be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from tidemill.config.pipeline import Pipeline
from tidemill.contracts import SnapshotReader, SnapshotStore
from tidemill.disk.replace import replace_file
from tidemill.model.snapshot import SnapshotState, TableState
from tidemill.model.tablenames import TableNames

NOT_COPIED = "Add `snapshot: {}` to the source's config; `snapshot: {mode: never}` says that changes only are meant."
START_COPY = (
    "Copy them: tidemill snapshot start FILE. `snapshot: {mode: never}` in the source's config says that changes only"
    " are meant."
)
_NAMED = 5
_UNDER_WAY = (SnapshotState.RUNNING, SnapshotState.PAUSED)


@dataclass(frozen=True, slots=True)
class MetTables:
    """Tables that were captured when the pipeline last started, those of them that had rows when they were met, and
    the patterns by which tables were captured then: what matches them and comes later is captured from its first
    row."""

    names: frozenset[str]
    filled: frozenset[str]
    patterns: tuple[str, ...]

    @classmethod
    def read(cls, pipeline: Pipeline) -> MetTables | None:
        try:
            doc = orjson.loads(_path(pipeline).read_bytes())
            return cls(frozenset(doc["names"]), frozenset(doc["filled"]), tuple(doc["patterns"]))
        except (OSError, ValueError, KeyError, TypeError):  # a lost one costs a warning too many
            return None

    def write(self, pipeline: Pipeline) -> None:
        doc = {"names": sorted(self.names), "filled": sorted(self.filled), "patterns": self.patterns}
        replace_file(_path(pipeline), orjson.dumps(doc))


def note_tables(pipeline: Pipeline, reader: SnapshotReader) -> None:
    """A pipeline without `snapshot` starts. With the patterns that it had when it last did there is nothing to note."""
    known, patterns = MetTables.read(pipeline), _patterns(pipeline)
    if known is None or known.patterns != patterns:
        names = frozenset(table.full_name for table in reader.structures())
        MetTables(names, frozenset(_met_filled(known, reader)), patterns).write(pipeline)


def find_uncopied(pipeline: Pipeline, store: SnapshotStore | None, reader: SnapshotReader) -> list[str]:
    """By name. `store` is None where nothing was ever kept."""
    filled = _met_filled(MetTables.read(pipeline), reader)
    if store is None or not filled:
        return filled
    copied: set[str] = set()
    for record in store.records(pipeline.name):
        if record.where:
            continue
        if record.state in _UNDER_WAY:
            wanted = TableNames(record.tables)
            copied |= {table.full_name for table in reader.structures() if wanted.match(table)}
        copied |= {
            table.name for table in store.tables(pipeline.name, record.id)
            if table.state is TableState.READY and not table.structure.where
        }  # fmt: skip
    return [name for name in filled if name not in copied]


def first_names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _met_filled(known: MetTables | None, reader: SnapshotReader) -> list[str]:
    """Tables with rows that may have had some when they were met."""
    filled = reader.names_with_rows()
    if known is None:
        return filled
    later = TableNames(known.patterns)
    from_first_row = {table.full_name for table in reader.structures() if later.match(table)} - known.names
    return [
        name for name in filled
        if name in known.filled or not (name in known.names or name in from_first_row)
    ]  # fmt: skip


def _patterns(pipeline: Pipeline) -> tuple[str, ...]:
    return tuple(getattr(pipeline.spec.source.config, "tables", ()))


def _path(pipeline: Pipeline) -> Path:
    return pipeline.state_path / "met_tables.json"
