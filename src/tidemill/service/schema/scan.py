"""The source's catalog against the registry, now, for who asks; and what an operator accepts of it. Safe while the
pipeline runs: capture has scans of its own (`capture/catalog_scan.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from tidemill.config import Pipeline
from tidemill.contracts import SnapshotSource
from tidemill.contracts.catalog_scan import CatalogReader
from tidemill.errors import ConfigError
from tidemill.schema.catalog_scan import BASELINE, CatalogBaseline, CatalogFinding
from tidemill.service.schema.versions import no_tables_yet


@dataclass(frozen=True, slots=True)
class ScanReport:
    """`findings` without those that were accepted. `tables` were compared; of those in `unknown` no scan of a running
    pipeline has noted defaults and expressions yet, so that these are not compared."""

    tables: int
    findings: tuple[CatalogFinding, ...]
    unknown: tuple[str, ...] = ()


def scan_catalog(pipeline: Pipeline) -> ScanReport:
    """Connects to the source and changes nothing. Where nothing has run yet there is nothing to compare."""
    found = pipeline.find_registry()
    if found is None:
        return ScanReport(0, ())
    with closing(found) as registry, _reader(pipeline) as reader:
        scan = reader.scan_catalog(pipeline.spec.catalog_scan.timeout_seconds)
        tables = registry.tables_in_force()
        baseline = CatalogBaseline.from_json(registry.recall(BASELINE))
    comparison = baseline.compare(scan, tables)
    unknown = sorted(comparison.facts.keys() - baseline.facts.keys())
    return ScanReport(len(tables), tuple(sorted(comparison.findings - baseline.accepted)), tuple(unknown))


def accept_catalog(pipeline: Pipeline, table: str) -> int:
    """The table is taken as the catalog has it now. How many findings that settles."""
    if (found := pipeline.find_registry()) is None:
        raise no_tables_yet(pipeline)
    found.close()
    with closing(pipeline.open_registry()) as registry, _reader(pipeline) as reader:
        scan = reader.scan_catalog(pipeline.spec.catalog_scan.timeout_seconds)
        tables = registry.tables_in_force()
        mine = next((each for each in tables if each.full_name == table), None)
        if mine is None:
            known = ", ".join(each.full_name for each in tables) or "none yet"
            raise ConfigError(f'no table "{table}" is registered', where=registry.where, fix=f"There are: {known}.")
        settled = 0

        def accept(document: bytes | None) -> bytes:
            nonlocal settled
            baseline = CatalogBaseline.from_json(document)
            comparison = baseline.compare(scan, tables)
            settled = sum(each.table == table for each in comparison.findings - baseline.accepted)
            return baseline.accept(scan, comparison, mine).to_json()

        registry.revise(BASELINE, accept)
    return settled


def describe_catalog_finding(finding: CatalogFinding) -> dict[str, Any]:
    return {
        "table": finding.table, "kind": str(finding.kind), "column": finding.subject or None, "what": finding.what,
    }  # fmt: skip


@contextmanager
def _reader(pipeline: Pipeline) -> Iterator[CatalogReader]:
    with closing(pipeline.build_source()) as source:
        reader: object = source.snapshot_reader() if isinstance(source, SnapshotSource) else None
        if not isinstance(reader, CatalogReader):
            raise ConfigError(
                f'the catalog of a source of type "{pipeline.spec.source.type}" cannot be scanned', where=pipeline.file,
                fix="It is there for postgres, mysql and mariadb.",
            )  # fmt: skip
        yield reader
