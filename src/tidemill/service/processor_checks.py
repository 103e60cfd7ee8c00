"""Whether the columns and tables that processors name are captured, for `tidemill doctor`: before `run` meets them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from tidemill.config import Pipeline
from tidemill.config.secrets import reveal
from tidemill.contracts import BaseProcessor, Check, Outcome, SnapshotSource
from tidemill.errors import ConfigError, TidemillError
from tidemill.model.table import Table
from tidemill.model.tablenames import TableNames
from tidemill.service.schema.structures import KeptStructures
from tidemill.stream.schema.structures import Structures, digest

_NAMED = 3  # tables of one mistake


def check_processors(subject: Pipeline) -> Iterator[Check]:
    """One line for each processor: its settings fit the captured tables, as earlier processors leave them, or what
    does not. Warnings: a table may yet change. Whatever keeps the source from being asked its own checks say."""
    try:
        yield from _check_chain(subject)
    except (TidemillError, ImportError):
        return  # what cannot be built, read or imported is a failed check of its own


def _check_chain(subject: Pipeline) -> Iterator[Check]:
    specs = subject.spec.processors
    tables = _captured_tables(subject) if specs else []
    if not tables:
        return
    flow: dict[str, Table | None] = {table.full_name: table for table in tables}
    known, chain = KeptStructures(subject).load(), []
    for spec in specs:
        chain.append((spec.type, reveal(spec.config)))
        name = f"processor {spec.config.id} ({spec.type}): columns"
        with closing(subject.build_processor(spec)) as processor:
            yield from _check(name, processor, flow, tables, Structures(digest(chain), known))


def _captured_tables(subject: Pipeline) -> list[Table]:
    source = subject.build_source()
    if not isinstance(source, SnapshotSource):
        return []
    with closing(source.snapshot_reader()) as reader:
        try:
            return reader.structures()
        except TidemillError:
            return []


def _check(
    name: str, processor: BaseProcessor[Any], flow: dict[str, Table | None], tables: Sequence[Table], kept: Structures
) -> Iterator[Check]:
    """`flow` is what rows of each table look like here, None where only rows tell; it is what they look like after
    the processor then."""
    names = TableNames(processor.config.tables)
    mine = [table.full_name for table in tables if names.match(table)]
    if not mine:
        yield _no_table(name, processor.config.tables, tables)
        return
    seen = [table for each in mine if (table := flow[each]) is not None]
    problems: dict[str, list[tuple[str, ConfigError]]] = {}
    for table in seen:
        try:
            processor.check_table(table)
            derived = processor.derive(table)
            flow[table.full_name] = derived if derived is not None else kept.of(table.full_name, table)
        except ConfigError as error:
            problems.setdefault(error.what.replace(table.full_name, ""), []).append((table.full_name, error))
            flow[table.full_name] = None
    for found in problems.values():
        more = f", and so it is of {', '.join(t for t, _ in found[1:_NAMED])}" if len(found) > 1 else ""
        more += f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        yield Check(name, Outcome.WARN, found[0][1].what + more, found[0][1].fix)
    absent = processor.unmatched_columns(seen) if seen and not problems else ()
    for text in absent:
        yield Check(name, Outcome.WARN, f'no captured table has a column "{text}"', _nearest(text, seen))
    if not problems and not absent:
        unseen = len(mine) - len(seen)
        later = f"; of {unseen} only rows tell which columns come to it" if unseen else ""
        yield Check(name, Outcome.PASS, f"they fit {len(seen)} of {len(tables)} captured tables{later}")


def _no_table(name: str, patterns: Sequence[str], tables: Sequence[Table]) -> Check:
    known = [table.full_name for table in tables]
    close = [near for text in patterns for near in difflib.get_close_matches(text, known, n=1)]
    hint = f'Did you mean "{close[0]}"? ' if close else ""
    listed = f"Captured are: {', '.join(known)}." if len(known) <= 25 else ""
    return Check(name, Outcome.WARN, f"no captured table is called {', '.join(patterns)}", f"{hint}{listed}")


def _nearest(text: str, tables: Sequence[Table]) -> str:
    names = sorted({column.name for table in tables for column in table.columns})
    close = difflib.get_close_matches(text.strip("*%"), names, n=1)
    listed = f"There are: {', '.join(names)}." if len(names) <= 25 else "Nothing is done to any column by it."
    return f'Did you mean "{close[0]}"? {listed}' if close else listed
