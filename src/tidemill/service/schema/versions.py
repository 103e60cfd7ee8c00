"""Versions of tables as the registry has them: which there are, how they differ, which was in force where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise

from tidemill.config.pipeline import Pipeline
from tidemill.errors import ConfigError
from tidemill.log.reader import LogReader
from tidemill.model.block import Block
from tidemill.model.position import Offset, Ordering, Position
from tidemill.model.table import Table
from tidemill.model.tablenames import find_name
from tidemill.schema import compatibility
from tidemill.schema.compatibility import VersionComparison
from tidemill.schema.diff import Diff, diff
from tidemill.schema.registry import Registration, SchemaRegistry

__all__ = ["Diff", "Registration", "Table", "VersionComparison"]  # what callers are given


@dataclass(frozen=True, slots=True)
class VersionView:
    """A version, and how it goes with the one before it; None of the first."""

    registration: Registration
    against_previous: VersionComparison | None


@dataclass(frozen=True, slots=True)
class VersionDiff:
    old: Table
    new: Table
    changes: Diff
    comparison: VersionComparison


def newest_schemas(pipeline: Pipeline) -> list[Registration]:
    """Of every table, by name; none where nothing has run yet."""
    registry = pipeline.find_registry()
    if registry is None:
        return []
    with closing(registry):
        return registry.tables()


def schema_version(pipeline: Pipeline, table: str, version: int | None = None) -> Registration:
    """The newest one unless a version is named."""
    with _open(pipeline) as registry:
        table = _find_name(registry, table)
        found = registry.latest(table) if version is None else registry.get(table, version)
        if found is None:
            raise _unknown(registry, table)
        return found


def schema_versions(pipeline: Pipeline, table: str) -> list[VersionView]:
    """Oldest first."""
    with _open(pipeline) as registry:
        history = registry.history(_find_name(registry, table))
        if not history:
            raise _unknown(registry, table)
    views = [VersionView(history[0], None)]
    for before, after in pairwise(history):
        views.append(VersionView(after, compatibility.compare(before.table, after.table)))
    return views


def diff_versions(pipeline: Pipeline, table: str, old: int, new: int) -> VersionDiff:
    one, other = (schema_version(pipeline, table, version).table for version in (old, new))
    return VersionDiff(one, other, diff(one, other), compatibility.compare(one, other))


def schema_at(
    pipeline: Pipeline,
    table: str,
    *,
    offset: Offset | None = None,
    sequence: int | None = None,
    position: str | None = None,
) -> Registration:
    """What was in force at an offset of the log, at a position of the source, or at a `schema_sequence` as events carry
    it.

    At an offset it is the structure of the table's last event before or at it, and of its first one after it where the
    log has none before (invariant 6: an event is decoded with it).
    """
    if sum(each is not None for each in (offset, sequence, position)) != 1:
        raise ConfigError(
            "name an offset, a position or a sequence, one of them", fix="--offset N, --position P, or --sequence N."
        )
    with _open(pipeline) as registry:
        table = _find_name(registry, table)
        if sequence is not None:
            found = registry.at(table, sequence)
        else:
            version = (
                _version_at(pipeline, table, offset or 0)
                if position is None
                else _version_at_position(pipeline, table, Position(position))
            )
            found = registry.get(table, version) if version is not None else None
        if found is None:
            raise _unknown(registry, table)
        return found


def _version_at_position(pipeline: Pipeline, table: str, position: Position) -> int | None:
    """Of the table's last event that was committed at or before it, or of its first one after it. Only the source can
    compare positions."""
    log = LogReader(pipeline.log_uri)
    found: int | None = None
    with closing(pipeline.build_source()) as source:

        def is_after(place: Position) -> bool:
            ordering = source.compare(place, position)
            if ordering is None:
                raise ConfigError(
                    f"{position} cannot be compared with {place}, a position of the log", where=log.label,
                    fix="Give a position as events carry it, or ask with --offset or --sequence.",
                )  # fmt: skip
            return ordering is Ordering.AFTER

        for entry in log.entries():
            ends_later = is_after(entry.tail.position)
            for ref in sorted((ref for ref in entry.blocks if ref.table == table), key=lambda ref: ref.first):
                if ends_later and is_after(_first_position(log.read(ref))):
                    return ref.version if found is None else found
                found = ref.version
            if ends_later and found is not None:
                return found
    return found


def _first_position(block: Block) -> Position:
    positions = block.column("position")
    assert positions is not None
    return Position(positions[0].as_py())


def _version_at(pipeline: Pipeline, table: str, offset: Offset) -> int | None:
    log = LogReader(pipeline.log_uri)
    head, tail = log.head(), log.tail().offset
    if not head <= offset < tail:
        raise ConfigError(
            f"offset {offset} is not in the log, which has {head} to {tail - 1}", where=log.label,
            fix="Events carry schema_sequence: ask with --sequence for those that the log no longer has.",
        )  # fmt: skip
    found: int | None = None
    for entry in log.entries():
        for ref in sorted((ref for ref in entry.blocks if ref.table == table), key=lambda ref: ref.first):
            if ref.first > offset and found is not None:
                return found
            found = ref.version
            if ref.first > offset:
                return found
    return found


def no_tables_yet(pipeline: Pipeline) -> ConfigError:
    """For who names a table of a pipeline that never ran."""
    return ConfigError("no table is registered yet: there is no schema registry", where=pipeline.file, fix="Run it.")


@contextmanager
def _open(pipeline: Pipeline) -> Iterator[SchemaRegistry]:
    registry = pipeline.find_registry()
    if registry is None:
        raise no_tables_yet(pipeline)
    with closing(registry):
        yield registry


def _find_name(registry: SchemaRegistry, table: str) -> str:
    return find_name(table, (found.table.full_name for found in registry.tables()))


def _unknown(registry: SchemaRegistry, table: str) -> ConfigError:
    known = [found.table.full_name for found in registry.tables()]
    if table in known:
        numbers = ", ".join(str(version.version) for version in registry.versions(table))
        return ConfigError(f"table {table} has no such version", where=registry.where, fix=f"It has: {numbers}.")
    listed = ", ".join(known) or "none yet"
    return ConfigError(f'no table "{table}" is registered', where=registry.where, fix=f"There are: {listed}.")
