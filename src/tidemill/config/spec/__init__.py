"""The pipeline document as models: what stands under `metadata:` and `spec:`.

A component's own settings (`config:` of a source, processor, sink or checkpoint store) are the model beside that
component; here they are only what every member of the family has. `config.resolve` puts the right model in its place
before these models see the data.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny, StringConstraints, field_validator, model_validator

from tidemill.config.duration import Duration
from tidemill.config.spec.catalog_scan import CatalogScanning
from tidemill.config.spec.ddl import Ddl
from tidemill.config.spec.schedule import Schedule
from tidemill.config.spec.sensing import SchemaSensing
from tidemill.config.spec.sink import SinkSpec
from tidemill.contracts import Config, ProcessorConfig, SourceConfig, WireFormat
from tidemill.dlq.config import DlqConfig
from tidemill.log.config import LogConfig

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
"""Becomes a directory, a metric label and part of URLs: letters, digits, dot, dash and underscore."""


class Metadata(Config):
    name: Name = Field(
        description="The pipeline's name, and that of its state: letters, digits, dots, dashes, underscores."
    )
    tenant: str | None = Field(default=None, description="A label: whom the pipeline belongs to.")
    labels: dict[str, str] = Field(
        default={}, description="Names and values to find the pipeline by: team: payments. They change nothing else."
    )

    @field_validator("name")
    @classmethod
    def _is_no_file_of_the_state_store(cls, name: str) -> str:
        """The state directory of a pipeline stands beside them."""
        if name.lower().startswith("state.sqlite"):
            raise ValueError("names that begin with state.sqlite belong to the state store's files: use another one")
        return name


class Sharding(Config):
    """How a batch is spread over lanes. The changes of one key stay in one lane, in order."""

    mode: Literal["hash", "table"] = Field(
        default="hash", description="`hash` spreads the rows of a table by their key, `table` keeps a table together."
    )
    count: int | None = Field(
        default=None, ge=1, le=4096, description="Number of lanes; by default as few as needed, at most one per core."
    )
    key: str | None = Field(
        default=None,
        description="Columns of the key, with commas, to hash instead of all of it; other tables use their whole key.",
    )


class SourceSpec(Config):
    type: str = Field(description="Which kind of database.")
    config: SerializeAsAny[SourceConfig] = Field(description="Settings of this type of source.")


class Checkpoints(Config):
    type: str = Field(default="file", description="Where checkpoints are kept.")
    config: SerializeAsAny[Config] = Field(default=Config(), description="Settings of this type of store.")


class ProcessorSpec(Config):
    """Settings stand under `config:`, or beside `type:` as the short form has them."""

    type: str = Field(description="What it does to the events.")
    config: SerializeAsAny[ProcessorConfig] = Field(description="Settings of this type of processor, its `id` first.")


class Batch(Config):
    """What one batch may hold. It ends at the first limit met."""

    max_events: int = Field(default=500_000, ge=1, description="Events in a batch.")
    max_bytes: int = Field(default=67_108_864, ge=1, description="Bytes of the log in a batch.")
    max_ms: int = Field(
        default=0, ge=0, description="How long to wait for a fuller batch; 0 delivers as soon as something is there."
    )
    respect_source_tx: bool = Field(
        default=True, description="Never split a source transaction, even one larger than the limits."
    )
    max_inflight: int | None = Field(
        default=None, ge=1, description="Batches that capture may run ahead of delivery; by default only log.max_bytes."
    )


class Trigger(Config):
    """When delivery runs. What is delivered, in which order and with which promises, is the same in all modes."""

    mode: Literal["real_time", "micro_batch", "once"] = Field(
        default="real_time",
        description="`real_time` keeps tasks standing that deliver within milliseconds and hold a slot of Spark each; "
        "`micro_batch` runs a Spark job per batch, and is also what a pipeline that names no mode gets where the "
        "session has no slot for it; `once` delivers what is there at the start over standing tasks, and ends: "
        "docs/realtime.md.",
    )
    epoch_seconds: float = Field(
        default=600, ge=1, le=86_400,
        description="In real time, how long tasks stand before Spark starts them anew; in between nothing is delivered "
        "for less than a second.",
    )  # fmt: skip

    @property
    def chosen(self) -> bool:
        """Whether somebody asked for this mode: else it gives way to a session without slots for it."""
        return "mode" in self.model_fields_set

    @property
    def real_time(self) -> bool:
        """Whether tasks stand; also for a run that ends by itself."""
        return self.mode != "micro_batch"

    @property
    def once(self) -> bool:
        return self.mode == "once"


class Pause(Config):
    """What a pause ends. Its position is kept either way, and so is what the log holds."""

    capture: bool = Field(
        default=False,
        description="Whether a paused pipeline goes on capturing into its log, until that holds log.max_bytes; only "
        "delivery stops then: docs/server.md.",
    )


class CommitPolicy(Config):
    """Whose receipts let the checkpoint advance. A sink that it does not wait for has a position of its own."""

    mode: Literal["all", "required", "quorum"] = Field(
        default="required", description="`all` sinks, those marked `required`, or any `quorum` of them."
    )
    quorum: int | None = Field(default=None, ge=1, description="How many sinks must have the batch, in mode quorum.")


class Spark(Config):
    master: str = Field(default="local[*]", description="Where Spark runs: local[*], spark://, yarn, k8s://.")
    conf: dict[str, str] = Field(default={}, description="Spark settings, as in spark-defaults.conf.")
    lanes: int | None = Field(
        default=None, ge=1, le=4096, description="Lanes per batch when sharding.count is not given."
    )

    @property
    def slots(self) -> int | None:
        """Tasks at the same time, where the master says it: `local`, `local[4]`, `local[4,2]`. None for `local[*]`,
        which follows the machine, and for a cluster, which may grow."""
        found = re.fullmatch(r"local(?:\[\s*(\d+)\s*(?:,\s*\d+\s*)?\])?", self.master)
        return int(found[1] or 1) if found else None

    @property
    def speculates(self) -> bool:
        """Whether Spark starts a second task beside one that takes long, as a standing lane does by design."""
        return self.conf.get("spark.speculation", "false").lower() == "true"


class PipelineSpec(Config):
    source: SourceSpec = Field(description="The database whose changes are captured.")
    sinks: tuple[SinkSpec, ...] = Field(min_length=1, description="Where the changes go: one or more.")
    processors: tuple[ProcessorSpec, ...] = Field(
        default=(), description="What happens to events between the log and the sinks, in order: docs/processors.md."
    )
    wire_format: WireFormat | None = Field(
        default=None,
        description="Format of every sink that sends events; a sink that does not take it is refused: docs/formats.md.",
    )
    sharding: Sharding = Field(default=Sharding(), description="How the work is spread over lanes.")
    batch: Batch = Field(default=Batch(), description="What one batch may hold.")
    trigger: Trigger = Field(
        default=Trigger(), description="When delivery runs: as micro-batches, in real time, or once."
    )
    schedule: Schedule | None = Field(
        default=None, description="When a server runs it, by cron; without one it runs all the time: docs/schedules.md."
    )
    pause: Pause = Field(default=Pause(), description="What a pause ends: delivery, or capture too.")
    commit_policy: CommitPolicy = Field(
        default=CommitPolicy(), description="Which sinks must have a batch before the checkpoint moves."
    )
    schema_sensing: SchemaSensing = Field(
        default=SchemaSensing(), description="Schemas inferred from events, and drift: docs/sensing.md."
    )
    ddl: Ddl = Field(
        default=Ddl(), description="Schema changes, their policies and their gate: docs/schema-changes.md."
    )
    ddl_flush_timeout: Duration | None = Field(
        default=None,
        description="The same as ddl.flush_timeout_seconds, under the name and in the form that Stream Bridge has: 1m.",
    )
    catalog_scan: CatalogScanning = Field(
        default=CatalogScanning(),
        description="The source's catalog against the registry, by interval: docs/schemas.md.",
    )
    log: LogConfig = Field(
        default=LogConfig.model_validate({}), description="The change log between capture and delivery."
    )
    dlq: DlqConfig = Field(
        default=DlqConfig(enabled=False),
        description="Dead letters: what happens to events that a sink will never take. Off unless it is given.",
    )
    checkpoints: Checkpoints = Field(default=Checkpoints(), description="Where the pipeline notes how far it came.")
    spark: Spark = Field(default=Spark(), description="The Spark session the stream runs in.")
    ack: Literal["delivered", "logged"] = Field(
        default="delivered",
        description="When the source may forget a change: once it is delivered, or once the log has it on disk.",
    )
    state_dir: str = Field(default=".tidemill", description="Directory of all state; one folder per pipeline in it.")
    state_uri: str | None = Field(
        default=None,
        pattern=r"^postgres(ql)?://",
        description="A database for positions confirmed to the source, lifecycle and status, where several machines "
        "share them: postgresql://user@host/database?schema=tidemill_state. By default state.sqlite in state_dir.",
        json_schema_extra={"secret": True},
    )

    @model_validator(mode="after")
    def _has_slots_for_standing_lanes(self) -> PipelineSpec:
        if not (self.trigger.real_time and self.trigger.chosen):
            return self
        lanes, slots = self.lanes or 1, self.spark.slots
        if self.spark.speculates:
            raise ValueError(
                f"trigger.mode {self.trigger.mode} does not go with spark.speculation: Spark would start a second "
                "task for each lane that stands. Leave that setting out"
            )
        if slots is not None and slots <= lanes:
            raise ValueError(
                f"trigger.mode {self.trigger.mode} holds {lanes} of Spark's slots for lanes and needs one more for "
                f"other jobs, but spark.master {self.spark.master} has {slots}: raise it to "
                f"local[{lanes + 1}], or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _captures_in_a_pause_only_what_runs(self) -> PipelineSpec:
        if self.schedule is not None and self.pause.capture:
            raise ValueError(
                "pause.capture does not go with a schedule: nothing is captured between two runs. Leave one out"
            )
        return self

    @model_validator(mode="after")
    def _tries_only_what_is_captured(self) -> PipelineSpec:
        if self.processors and any(each.action == "try_evolve" for each in self.ddl.policies):
            raise ValueError(
                "ddl: try_evolve needs a pipeline without processors: what a sink refuses is known when it meets the"
                " columns that these give, and they run once for all sinks; use evolve, ignore, quarantine or halt"
            )
        return self

    @model_validator(mode="after")
    def _has_one_flush_timeout(self) -> PipelineSpec:
        if self.ddl_flush_timeout is not None and "flush_timeout_seconds" in self.ddl.model_fields_set:
            raise ValueError("ddl_flush_timeout and ddl.flush_timeout_seconds are the same: leave one of them out")
        return self

    @property
    def flush_seconds(self) -> float:
        """How long a sink may hold up a schema change."""
        return self.ddl.flush_timeout_seconds if self.ddl_flush_timeout is None else self.ddl_flush_timeout

    @property
    def lanes(self) -> int | None:
        """How many lanes the document asks for; None leaves it to the stream (about one per core)."""
        return self.sharding.count or self.spark.lanes


class PipelineDocument(Config):
    metadata: Metadata = Field(description="Who the pipeline is.")
    spec: PipelineSpec = Field(description="What the pipeline does.")
