"""A pipeline as a server knows it: its document, where that came from, and what an operator wants it to be."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tidemill.config import Pipeline
from tidemill.config.document import Document
from tidemill.contracts.installation import StoredDocument
from tidemill.contracts.lease import StoredLease
from tidemill.errors import ChangedMeanwhile, ConfigError, ErrorData, LifecycleError, TidemillError
from tidemill.model.clock import utc_now
from tidemill.service.lease.lease_process import LeaseProcess
from tidemill.service.run.status import PipelineStatus

API, FILE = "api", "file"
RUNNING, PAUSED, STOPPED, CREATED = "running", "paused", "stopped", "created"
WAITING_FOR_SCHEDULE = "waiting_for_schedule"


@dataclass(frozen=True, slots=True)
class Managed:
    """`data` is an API document as it was sent, variables unexpanded; None for a file's. `pipeline` is None where the
    document cannot be used any more, and `problem` says why."""

    name: str
    origin: str
    data: Mapping[str, Any] | None
    document: Document | None
    pipeline: Pipeline | None
    problem: TidemillError | None
    version: str
    desired: str
    changed_by: str
    changed_at: str

    @property
    def tenant(self) -> str | None:
        """Also of a document that cannot be used: it stays its tenant's."""
        if self.pipeline is not None:
            return self.pipeline.tenant
        metadata = (self.data or {}).get("metadata")
        tenant = metadata.get("tenant") if isinstance(metadata, dict) else None
        return tenant if isinstance(tenant, str) else None

    @property
    def captures_paused(self) -> bool:
        """An operator paused it, and its document says that it goes on capturing."""
        return self.desired == PAUSED and self.pipeline is not None and self.pipeline.spec.pause.capture

    @property
    def is_wanted(self) -> bool:
        """Whether something of it runs, if all is well."""
        return self.desired == RUNNING or self.captures_paused

    def stored(self) -> StoredDocument:
        text = orjson.dumps(self.data).decode() if self.data is not None else ""
        return StoredDocument(
            self.name, self.origin, text, self.version, self.desired, self.changed_by, self.changed_at
        )


@dataclass(frozen=True, slots=True)
class LeaseView:
    """Which server runs the pipeline: the process, and whether that is this one. `epoch` is the fencing number."""

    holder: str
    epoch: int
    since: str
    here: bool

    @classmethod
    def of(cls, lease: StoredLease | None, us: str) -> LeaseView | None:
        if lease is None or lease.holder is None:
            return None
        process = LeaseProcess.read(lease.holder.process)
        return cls(str(process or "unknown"), lease.epoch, lease.since, lease.holder.id == us)


@dataclass(frozen=True, slots=True)
class PipelineView:
    """What is shown of a pipeline. `state` is that of the run as it is shown (`draining`, `waiting_for_approval`), or
    what is desired of one that has not run yet in this server. `spec` has its secrets masked, and is None where the
    document cannot be used. `next_run` is the next slot of its schedule."""

    name: str
    state: str
    desired: str
    origin: str
    version: str
    tenant: str | None
    labels: Mapping[str, str]
    spec: Mapping[str, Any] | None
    changed_by: str
    changed_at: str
    status: PipelineStatus | None
    error: ErrorData
    lease: LeaseView | None = None
    next_run: str | None = None


class MaskedSpecs:
    """Documents with their secrets masked, each made once: lists of all pipelines are asked for again and again, also
    by those who only want names. Any thread may call it."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Pipeline, Mapping[str, Any]]] = {}

    def of(self, pipeline: Pipeline) -> Mapping[str, Any]:
        """Not to be changed: it is everybody's."""
        made = self._made.get(pipeline.name)
        if made is None or made[0] is not pipeline:
            made = self._made[pipeline.name] = (pipeline, pipeline.mask_secrets()["spec"])
        return made[1]

    def forget(self, name: str) -> None:
        self._made.pop(name, None)


def name_conflict(name: str) -> LifecycleError:
    return LifecycleError(f'there is a pipeline "{name}" already', fix="Change that one, or use another name.")


def foreign_conflict(name: str) -> ConfigError:
    """Without a word of the pipeline that was there before: it does not exist for who asks."""
    return ConfigError(
        "the id of the source, or a place that a sink writes to, is used by a pipeline that this token is not for",
        where=f"pipeline {name}",
        fix="Choose another id, and places of your own. Nothing was changed.",
    )


def foreign_state(name: str) -> LifecycleError:
    return LifecycleError(
        f'the name "{name}" was used by a pipeline that this token is not for, and its state is still there',
        fix="Use another name, or ask an admin of all pipelines to create it. Nothing was changed.",
    )


def change_conflict(found: Managed) -> ChangedMeanwhile:
    return ChangedMeanwhile(
        f'pipeline "{found.name}" has been changed since you read it',
        where=f"version {found.version}, by {found.changed_by} at {found.changed_at}",
        fix="Read it again and repeat the change on what it is now.",
    )


def new_version() -> str:
    """Never one that was there before, also not of a pipeline that was deleted and made again."""
    return secrets.token_hex(8)


def of_file(name: str, document: Document, pipeline: Pipeline, desired: str) -> Managed:
    return Managed(name, FILE, None, document, pipeline, None, new_version(), desired, document.file, utc_now())
