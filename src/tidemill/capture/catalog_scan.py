"""Scans of the source's catalog by interval, beside capture: a thread with connections of its own.

Nothing that happens here reaches the capture loop. A scan that fails is an event and a notice, and the next one comes
an interval later; a server that does not answer costs this thread its timeout and nobody else anything. A difference
is reported when two scans in succession find it: the catalog is ahead of the stream, which may tell it in a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from tidemill.config.pipeline import Pipeline
from tidemill.contracts import Notice, SnapshotSource
from tidemill.contracts.catalog_scan import CatalogReader, CatalogScan
from tidemill.errors import TidemillError
from tidemill.schema.catalog_scan import BASELINE, CatalogBaseline, CatalogComparison, CatalogFinding
from tidemill.schema.registry import RegistryPlace, SchemaRegistry
from tidemill.telemetry import events

_AGAIN_SECONDS = 10.0
_FIX = "tidemill schemas scan FILE shows all of it; with --accept TABLE it is taken as it is."


@dataclass(frozen=True, slots=True)
class ScanSettings:
    interval_seconds: float
    timeout_seconds: float


def build_scanner(pipeline: Pipeline, source: object) -> CatalogScanner | None:
    """None where the document says so, or the source's catalog cannot be read as a whole."""
    asked = pipeline.spec.catalog_scan
    if not asked.enabled or not isinstance(source, SnapshotSource):
        return None
    reader = source.snapshot_reader()
    if not isinstance(reader, CatalogReader):
        return None
    settings = ScanSettings(asked.interval_seconds, asked.timeout_seconds)
    return CatalogScanner(reader.scan_catalog, pipeline, pipeline.source_id, settings)


@contextmanager
def run_beside(scanner: CatalogScanner | None) -> Iterator[None]:
    if scanner is None:
        yield
        return
    scanner.start()
    try:
        yield
    finally:
        scanner.close()


class CatalogScanner:
    """`scan` is `CatalogReader.scan_catalog`."""

    def __init__(
        self, scan: Callable[[float], CatalogScan], registry: RegistryPlace, subject: str, settings: ScanSettings
    ) -> None:
        self._scan, self._place, self._subject, self._settings = scan, registry, subject, settings
        self._suspected: frozenset[CatalogFinding] = frozenset()
        self._notices: tuple[Notice, ...] = ()
        self._failure: Notice | None = None
        self._seen: tuple[Notice, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="catalog scan", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def notices(self) -> tuple[Notice, ...]:
        """Cheap."""
        failure = self._failure
        return self._notices if failure is None else (*self._notices, failure)

    def has_news(self) -> bool:
        """Whether notices are others than when this was last asked."""
        before, self._seen = self._seen, self.notices()
        return before != self._seen

    def close(self) -> None:
        """A scan under way is not waited for: it writes nothing any more."""
        self._stop.set()

    def scan_once(self, registry: SchemaRegistry) -> bool:
        """Whether another scan should come soon: there are differences that were seen once."""
        scanned = self._scan(self._settings.timeout_seconds)
        tables = registry.tables_in_force()
        known, reported = frozenset[CatalogFinding](), frozenset[CatalogFinding]()
        suspected, before = frozenset[CatalogFinding](), self._suspected

        def advance(document: bytes | None) -> bytes:
            nonlocal known, reported, suspected
            baseline = CatalogBaseline.from_json(document)
            comparison: CatalogComparison = baseline.compare(scanned, tables)
            found = comparison.findings - baseline.accepted
            known, reported = baseline.reported, found & (baseline.reported | before)
            suspected = found - reported
            return baseline.advance(comparison, reported).to_json()

        if self._stop.is_set():
            return False
        registry.revise(BASELINE, advance)
        self._suspected = suspected
        self._report(known, reported)
        return bool(suspected)

    def _report(self, known: frozenset[CatalogFinding], reported: frozenset[CatalogFinding]) -> None:
        for each in sorted(reported - known):
            events.warn("catalog.drifted", table=each.table, kind=str(each.kind), column=each.subject, what=each.what)
        for each in sorted(known - reported):
            events.emit("catalog.drift_ended", table=each.table, kind=str(each.kind), column=each.subject)
        self._show(reported)

    def _show(self, reported: frozenset[CatalogFinding]) -> None:
        self._notices = tuple(
            Notice(f"catalog-{each.kind.replace('_', '-')}", each.table, each.what, _FIX) for each in sorted(reported)
        )

    def _run(self) -> None:
        with closing(self._place.open_registry()) as registry:
            self._recall(registry)
            seconds = self._settings.interval_seconds
            while not self._stop.wait(seconds):
                seconds = self._settings.interval_seconds
                try:
                    if self.scan_once(registry):
                        seconds = min(seconds, _AGAIN_SECONDS)
                    self._failure = None
                except Exception as error:  # noqa: BLE001  (a defect of ours must not end the scans unseen)
                    self._note_failure(error)

    def _recall(self, registry: SchemaRegistry) -> None:
        """What an earlier process reported stands until a scan says otherwise."""
        try:
            self._show(CatalogBaseline.from_json(registry.recall(BASELINE)).reported)
        except TidemillError as error:
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        what, fix = f"{type(error).__name__}: {error}", "Please report this."
        if isinstance(error, TidemillError):
            what, fix = error.what, error.fix
        notice = Notice("catalog-scan-failed", self._subject, f"the catalog could not be scanned: {what}", fix)
        if notice != self._failure:
            events.warn("catalog.scan_failed", error=what)
        self._failure = notice
