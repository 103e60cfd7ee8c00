"""Compares the rows of a sink with those of the source while the pipeline runs: equal, missing, extra, different.

Rows are read in chunks, as a snapshot reads them, and the sink compares them with its own (`contracts/audit.py`). The
two sides are never at the same place, so a difference is only a suspicion; `row_comparison.py` says how it is settled,
`repair.py` how rows are put right. With processors the rows go through the chain first (`row_chain.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from tidemill import registry
from tidemill.config import Pipeline
from tidemill.config.advice import fill_in_error
from tidemill.contracts import AuditedSink, SnapshotReader, SnapshotSource
from tidemill.errors import ConfigError, ProcessingError, Refused, StructureChanged, TidemillError
from tidemill.model.snapshot import SnapshotTable
from tidemill.service.snapshot.plan import settings_of
from tidemill.service.snapshot.requests import check_names
from tidemill.service.verify.repair import Repairer
from tidemill.service.verify.row_chain import RowChain
from tidemill.service.verify.row_comparison import RowComparison
from tidemill.service.verify.verdicts import TableVerdict

_STRUCTURES = 3


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`wait_seconds`: for how long a sink that lags is waited for. `values`: differences come with their values.
    `repair`: rows that differ are sent again, extra ones deleted."""

    wait_seconds: float = 30.0
    values: bool = False
    repair: bool = False


def verify(
    pipeline: Pipeline, *, sink: str | None = None, tables: Sequence[str] = (), options: VerifyOptions | None = None
) -> Iterator[TableVerdict]:
    """One verdict per table, as they are made."""
    spec = pipeline.choose_sink(sink)
    source = pipeline.build_source()
    if not isinstance(source, SnapshotSource):
        raise ConfigError(
            f"the rows of a {pipeline.spec.source.type} source cannot be read again", where=pipeline.file,
            fix="verify works with sources that have snapshots.",
        )  # fmt: skip
    with ExitStack() as stack:
        target = stack.enter_context(closing(pipeline.build_sink(spec)))
        reader = stack.enter_context(closing(source.snapshot_reader()))
        chain = stack.enter_context(closing(RowChain(pipeline)))
        if not isinstance(target, AuditedSink):
            raise ConfigError(
                f"sinks of type {spec.type} cannot be compared", where=pipeline.file,
                fix=f"verify works with: {', '.join(audited_sinks())}.",
            )  # fmt: skip
        check_names(pipeline, tables)
        try:
            found = reader.tables(tables)
        except TidemillError as error:
            fill_in_error(error, pipeline)
            raise
        if not found:
            raise ConfigError("no table is captured", where=pipeline.file, fix="tidemill doctor says why.")
        filters = settings_of(pipeline).filters  # they hold for a copy that is asked for in any mode
        work = _Verification(pipeline, spec.config.id, reader, target, chain, options or VerifyOptions())
        for table in found:
            if table.name in filters:
                yield TableVerdict(
                    table.name, error="snapshot.filters leaves out some of its rows",
                    fix="Which ones the sink should have is not known: name other tables with --table.",
                )  # fmt: skip
                continue
            yield work.run(table)


def audited_sinks() -> list[str]:
    """The types of sinks that can be compared."""
    names = registry.names("sinks")
    return [name for name in names if issubclass(registry.load("sinks", name), AuditedSink)]


class _Verification:
    def __init__(
        self, pipeline: Pipeline, sink: str, reader: SnapshotReader, target: AuditedSink, chain: RowChain,
        options: VerifyOptions,
    ) -> None:  # fmt: skip
        self._pipeline, self._sink, self._reader, self._target = pipeline, sink, reader, target
        self._chain, self._options = chain, options

    def run(self, table: SnapshotTable) -> TableVerdict:
        """What could not be compared for a passing reason is compared anew, a few times."""
        for _ in range(_STRUCTURES):
            try:
                verdict = self._compare(table)
            except StructureChanged as error:
                table = next((each for each in self._reader.tables() if each.name == table.name), table)
                failed, fix = error.what, "The table changes too often. Run it again."
                continue
            except (Refused, ProcessingError) as error:
                return TableVerdict(table.name, error=error.what, fix=error.fix)
            if verdict.keys or verdict.repair is not None or not verdict.more:
                return verdict
            # Only some of what differed was looked at again: the rest may have been a delay, or not.
            failed, fix = _TOO_MANY, "The sink lags too much to be compared. Run it again when it has caught up."
        return TableVerdict(table.name, error=failed, fix=fix)

    def _compare(self, table: SnapshotTable) -> TableVerdict:
        options = self._options
        target = self._chain.structure(table.table)
        with closing(self._target.audit(target, self._pipeline.source_id, values=options.values)) as audit:
            rows = RowComparison(
                self._pipeline, self._sink, self._reader, audit, self._chain, table, options.wait_seconds
            )
            verdict = rows.run()
            if options.repair and verdict.keys:
                return Repairer(self._pipeline, self._sink, self._reader, audit, rows, options.wait_seconds).run(
                    verdict
                )
            return verdict


_TOO_MANY = "not known: more rows differed at the first look than are looked at again"
