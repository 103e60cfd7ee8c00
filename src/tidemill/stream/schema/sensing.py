"""Sensing in the driver: what lanes saw of a batch is merged, compared with the baseline, and kept in the state store.

It is kept before the checkpoint moves, with the batch's end: a batch that is replayed is not counted again. A store
that is away does not hold up delivery; what could not be kept is kept with the next batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tidemill.contracts.sensing_store import SensedBatch, SensedTable, SensedVersion, SensingStore, StoredFinding
from tidemill.errors import TidemillError
from tidemill.model.clock import utc_now
from tidemill.model.drift import DriftKind
from tidemill.model.position import Offset
from tidemill.schema import drift
from tidemill.schema.drift import DriftThreshold, Finding, TableBaseline
from tidemill.schema.sensing import Sensed, SensingOptions, TableProfile, unpack
from tidemill.telemetry.events import warn


@dataclass(frozen=True, slots=True)
class DriftOptions:
    enabled: bool = True
    baseline_documents: int = 200
    thresholds: Mapping[DriftKind, DriftThreshold] = field(default_factory=dict)
    sent: bool = False  # there is a sink for it


class SensingKeeper:
    """Of one pipeline. For one thread: that of the stream whose batches are sensed."""

    def __init__(self, store: SensingStore, pipeline: str, options: SensingOptions, drifts: DriftOptions) -> None:
        self._store, self._pipeline = store, pipeline
        self._options, self._drift = options, drifts
        self._loaded = self._failing = False
        self._offset: Offset = 0
        self._revision = 0
        self._tables: dict[str, tuple[int, TableProfile]] = {}
        self._baselines: dict[str, TableBaseline] = {}
        self._findings: list[Finding] = []
        self._unsaved: set[str] = set()  # tables
        self._structures: dict[str, SensedVersion] = {}
        self._drifted: list[dict[str, Any]] = []  # reported, and not in the store yet

    def plan(self) -> dict[str, Any]:
        """For the workers of a run that starts now."""
        self._load()
        return asdict(replace(self._options, since=self._offset))

    def take(self, end: Offset, packed: Iterable[bytes | None]) -> None:
        """The results of all lanes of the batch before `end`."""
        self._load()
        if end <= self._offset:
            return
        batch: dict[str, Sensed] = {}
        try:
            for sensed in (each for some in packed if some for each in unpack(some)):
                name = sensed.profile.name
                batch[name] = batch[name].merge(sensed, self._options) if name in batch else sensed
            for sensed in batch.values():
                self._add(sensed, end)
        except Exception as error:  # noqa: BLE001  the batch is delivered: what cannot be merged must not stop it
            warn("sensing.failed", end=end, error=type(error).__name__)
        self._offset = end
        if batch or self._unsaved:
            self._save()

    def fired(self) -> list[Finding]:
        """Drift that is above its threshold."""
        return [finding for finding in self._findings if finding.fired]

    def _load(self) -> None:
        if self._loaded:
            return
        self._offset = self._store.offset(self._pipeline)
        for table in self._store.tables(self._pipeline):
            self._tables[table.name] = (table.version, TableProfile.from_dict(table.document))
        self._load_drift()
        self._loaded = True

    def _load_drift(self) -> None:
        self._revision = self._store.revision(self._pipeline)
        kept = self._store.baselines(self._pipeline)
        self._baselines = {name: TableBaseline.from_dict(document) for name, document in kept.items()}
        self._findings = [
            Finding.from_dict(each.table, each.kind, each.subject, each.document)
            for each in self._store.findings(self._pipeline)
        ]

    def _add(self, sensed: Sensed, end: Offset) -> None:
        name, limits = sensed.profile.name, self._options
        version, before = self._tables.get(name, (0, None))
        whole = sensed.profile
        if before is not None:
            whole = before.merge(sensed.profile, max_values=limits.max_values, max_keys=limits.max_keys)
        if before is None or before.structure() != whole.structure():
            version += 1
            self._structures[name] = SensedVersion(version, end, utc_now(), whole.structure())
        self._tables[name] = (version, whole)
        self._unsaved.add(name)
        if self._drift.enabled:
            self._compare(sensed, whole)

    def _compare(self, sensed: Sensed, whole: TableProfile) -> None:
        name, enough = whole.name, self._drift.baseline_documents
        baseline = self._baselines.get(name)
        if baseline is None:
            baseline = TableBaseline.of(sensed.profile, sensed.profile, enough)
        new = drift.compare(baseline, self._options.declared.get(name, {}), sensed)
        self._baselines[name] = baseline.learn(whole, enough)
        known = {finding.key: finding for finding in self._findings}
        merged = drift.merge(self._findings, new)
        self._findings = [self._judge(each, whole, known) if each.table == name else each for each in merged]

    def _judge(self, finding: Finding, whole: TableProfile, known: Mapping[Any, Finding]) -> Finding:
        """Reports it when it rises above its threshold; once, until it is accepted."""
        before = known.get(finding.key)
        threshold = self._drift.thresholds.get(finding.kind, DriftThreshold())
        if finding.fired or not finding.is_above(threshold, whole):
            return finding
        if before is None or not before.fired:
            first = finding.seen.first
            report = {
                "table": finding.table, "kind": str(finding.kind), "subject": finding.subject, "what": finding.what,
                "events": finding.seen.count, "offset": first.offset if first else None,
                "position": first.position if first else "",
            }  # fmt: skip
            warn("schema.drift", **report)
            if self._drift.sent:
                self._drifted.append({**report, "at": utc_now()})
        return replace(finding, fired=True)

    def _save(self) -> None:
        try:
            if self._store.revision(self._pipeline) != self._revision:
                self._load_drift()  # an operator accepted what there was; this batch is compared from the next on
            self._store.save(
                self._pipeline,
                SensedBatch(
                    self._offset,
                    utc_now(),
                    [SensedTable(name, *self._document(name)) for name in sorted(self._unsaved)],
                    self._structures,
                    {n: self._baselines[n].to_dict() for n in sorted(self._unsaved) if n in self._baselines},
                    [
                        StoredFinding(each.table, str(each.kind), each.subject, each.to_dict())
                        for each in self._findings
                        if each.table in self._unsaved
                    ],
                    tuple(self._drifted),
                    self._revision,
                ),
            )
        except TidemillError as error:
            if not self._failing:
                warn("sensing.not_saved", error=error.what, where=error.where)
            self._failing = True
            return
        self._unsaved, self._structures, self._drifted, self._failing = set(), {}, [], False

    def _document(self, name: str) -> tuple[int, dict[str, Any]]:
        version, profile = self._tables[name]
        return version, profile.to_dict()
