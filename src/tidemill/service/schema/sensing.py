"""Schemas inferred from events, and drift: what is known, and what an operator accepts. Safe while a pipeline runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from tidemill.config.pipeline import Pipeline
from tidemill.contracts import StateStore
from tidemill.contracts.sensing_store import SensedVersion, SensingStore
from tidemill.errors import ConfigError
from tidemill.model.tablenames import find_name
from tidemill.schema.drift import DriftThreshold, Finding, TableBaseline
from tidemill.schema.sensing import DeclaredColumn, SensingOptions, TableProfile, json_schema
from tidemill.state import find_store
from tidemill.stream.schema.sensing import DriftOptions, SensingKeeper

__all__ = ["Finding"]  # what callers are given


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """A table as its events show it. `version` counts its inferred structures."""

    profile: TableProfile
    version: int
    versions: tuple[SensedVersion, ...] = ()

    @property
    def name(self) -> str:
        return self.profile.name

    def summary(self) -> dict[str, Any]:
        profile = self.profile
        return {
            "table": self.name, "version": self.version, "fingerprint": profile.fingerprint,
            "schema_sequence": profile.sequence, "events": profile.events, "sampled": profile.sampled,
            "last_position": profile.last.position if profile.last else None,
        }  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """With its columns; ranges and enumerations, where they are asked for, show values."""
        versions = [{"version": v.version, "offset": v.offset, "at": v.at} for v in self.versions]
        columns = {name: column.describe() for name, column in self.profile.columns.items()}
        return {**self.summary(), "versions": versions, "columns": columns}


def build_keeper(pipeline: Pipeline, state: StateStore) -> SensingKeeper:
    """As the document says."""
    spec = pipeline.spec.schema_sensing
    drifts = spec.drift
    declared = {
        table: {name: DeclaredColumn(**column.model_dump()) for name, column in columns.items()}
        for table, columns in drifts.declared.items()
    }
    options = SensingOptions(
        max_depth=spec.deep_inspect.max_depth if spec.deep_inspect.enabled else 0,
        max_keys=spec.deep_inspect.max_keys,
        warmup_events=spec.sampling.warmup_events,
        sample_rate=spec.sampling.sample_rate,
        structures=spec.sampling.structure_cache,
        ranges=spec.values.ranges,
        enumerations=spec.values.enumerations,
        formats=spec.values.formats,
        max_values=spec.values.max_values,
        declared=declared if drifts.enabled else {},
    )
    thresholds = {kind: DriftThreshold(each.min_events, each.min_rate) for kind, each in drifts.thresholds.items()}
    return SensingKeeper(
        state.sensing, pipeline.name, options,
        DriftOptions(drifts.enabled, drifts.baseline_documents, thresholds, sent=drifts.sink is not None),
    )  # fmt: skip


def drift_notices(found: Iterable[Finding]) -> Iterator[dict[str, str]]:
    """Drift for the status of a pipeline."""
    for finding in found:
        yield {
            "code": f"drift-{finding.kind.replace('_', '-')}",
            "subject": finding.table,
            "what": finding.what,
            "fix": "tidemill drift ls FILE shows where; tidemill drift accept FILE TABLE takes it as it is.",
        }


def inferred_schemas(pipeline: Pipeline) -> list[InferredSchema]:
    """By name of the table; none where nothing has run yet."""
    with _find(pipeline) as store:
        tables = store.tables(pipeline.name) if store else []
    return [InferredSchema(TableProfile.from_dict(each.document), each.version) for each in tables]


def inferred_schema(pipeline: Pipeline, table: str) -> InferredSchema:
    with _open(pipeline) as store:
        found = {each.name: each for each in store.tables(pipeline.name)}
        table = find_name(table, found)
        if table not in found:
            raise _unknown(pipeline, table, found)
        one = found[table]
        return InferredSchema(
            TableProfile.from_dict(one.document), one.version, tuple(store.versions(pipeline.name, table))
        )


def export_json_schema(pipeline: Pipeline, table: str) -> dict[str, Any]:
    found = inferred_schema(pipeline, table)
    return json_schema(found.profile, found.version)


def statistics(pipeline: Pipeline) -> dict[str, Any]:
    """Of the pipeline, and of each table; zero where nothing has run yet."""
    with _find(pipeline) as store:
        profiles = [TableProfile.from_dict(each.document) for each in store.tables(pipeline.name)] if store else []
        offset = store.offset(pipeline.name) if store else 0
    return {
        "pipeline": pipeline.name,
        "offset": offset,
        "events": sum(profile.events for profile in profiles),
        "sampled": sum(profile.sampled for profile in profiles),
        "tables": [
            {
                "table": profile.name, "events": profile.events, "sampled": profile.sampled,
                "columns": len(profile.columns),
                "json_columns": sum(column.documents > 0 for column in profile.columns.values()),
                "documents": sum(column.documents for column in profile.columns.values()),
                "paths": sum(len({path for path, _ in column.paths}) for column in profile.columns.values()),
            }
            for profile in profiles
        ],
    }  # fmt: skip


def drifts(pipeline: Pipeline, *, below: bool = False) -> list[Finding]:
    """By table, kind and subject; with `below` also those under their threshold. None where nothing has run yet."""
    with _find(pipeline) as store:
        kept = store.findings(pipeline.name) if store else []
    found = [Finding.from_dict(each.table, each.kind, each.subject, each.document) for each in kept]
    return [finding for finding in found if below or finding.fired]


def describe_finding(finding: Finding) -> dict[str, Any]:
    """Never shows values."""
    seen = finding.seen
    return {
        "table": finding.table, "kind": str(finding.kind), "subject": finding.subject, "what": finding.what,
        "reported": finding.fired, "events": seen.count, "first": asdict(seen.first) if seen.first else None,
        "last": asdict(seen.last) if seen.last else None, "examples": [asdict(spot) for spot in seen.examples],
    }  # fmt: skip


def accept_drift(pipeline: Pipeline, table: str) -> int:
    """What is observed now becomes the baseline of the table; returns how many findings that settles."""
    with _open(pipeline) as store:
        found = {each.name: TableProfile.from_dict(each.document) for each in store.tables(pipeline.name)}
        table = find_name(table, found)
        if table not in found:
            raise _unknown(pipeline, table, found)
        profile = found[table]
        newest = {
            name: column
            for name, column in profile.columns.items()
            if column.last_seen == max(each.last_seen for each in profile.columns.values())
        }
        settled = sum(finding.table == table for finding in store.findings(pipeline.name))
        baseline = TableBaseline.of(
            TableProfile(table, profile.fingerprint, profile.sequence, columns=newest),
            profile,
            pipeline.spec.schema_sensing.drift.baseline_documents,
        )
        store.accept(pipeline.name, table, baseline.to_dict())
        return settled


@contextmanager
def _find(pipeline: Pipeline) -> Iterator[SensingStore | None]:
    state = find_store(pipeline.state_uri)
    if state is None:
        yield None
        return
    with closing(state):
        yield state.sensing


@contextmanager
def _open(pipeline: Pipeline) -> Iterator[SensingStore]:
    """For who names a table: without a store there is none."""
    with _find(pipeline) as store:
        if store is None:
            raise ConfigError(
                "nothing has been sensed yet: there is no state store", where=pipeline.file,
                fix="Set schema_sensing: {enabled: true} in its spec and run the pipeline.",
            )  # fmt: skip
        yield store


def _unknown(pipeline: Pipeline, table: str, known: Any) -> ConfigError:
    listed = ", ".join(sorted(known)) or "none yet"
    return ConfigError(
        f'no events of a table "{table}" have been sensed', where=f"pipeline {pipeline.name}",
        fix=f"There are: {listed}.",
    )  # fmt: skip
