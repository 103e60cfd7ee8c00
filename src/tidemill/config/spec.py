"""The pipeline document as models: what stands under `metadata:` and `spec:`.

A component's own settings (`config:` of a source, sink or checkpoint store) are the model beside that component;
here they are only what every member of the family has. `config.resolve` puts the right model in its place before these
models see the data.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny, StringConstraints

from tidemill.contracts import Config, SinkConfig, SourceConfig, WireFormat
from tidemill.dlq.config import DlqConfig
from tidemill.log.config import LogConfig

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
"""Becomes a directory, a metric label and part of URLs: letters, digits, dot, dash and underscore."""


class Metadata(Config):
    name: Name = Field(
        description="The pipeline's name, and that of its state: letters, digits, dots, dashes, underscores."
    )
    tenant: str | None = Field(default=None, description="A label: whom the pipeline belongs to.")


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


class SinkSpec(Config):
    type: str = Field(description="Which kind of destination.")
    config: SerializeAsAny[SinkConfig] = Field(description="Settings of this type of sink.")


class Checkpoints(Config):
    type: str = Field(default="file", description="Where checkpoints are kept.")
    config: SerializeAsAny[Config] = Field(default=Config(), description="Settings of this type of store.")


class ProcessorLimits(Config):
    cpu_ms: int | None = Field(default=None, ge=1, description="CPU time a batch may take.")
    mem_mb: int | None = Field(default=None, ge=1, description="Memory the engine may take.")
    timeout_ms: int | None = Field(default=None, ge=1, description="Time a batch may take.")


class Processor(Config):
    type: str = Field(description="What it does to the events.")
    id: str = Field(description="Its name in metrics and errors.")
    inline: str | None = Field(default=None, description="The code itself.")
    limits: ProcessorLimits | None = Field(
        default=None, description="What the code may use; a batch that exceeds it fails."
    )


class Batch(Config):
    """What one micro-batch may hold. It ends at the first limit met."""

    max_events: int = Field(default=200_000, ge=1, description="Events in a batch.")
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


class CommitPolicy(Config):
    """Whose receipts let the checkpoint advance. A sink that it does not wait for has a position of its own."""

    mode: Literal["all", "required", "quorum"] = Field(
        default="required", description="`all` sinks, those marked `required`, or any `quorum` of them."
    )
    quorum: int | None = Field(default=None, ge=1, description="How many sinks must have the batch, in mode quorum.")


class DeepInspect(Config):
    enabled: bool = Field(default=True, description="Look inside JSON columns.")
    max_depth: int = Field(default=3, ge=1, description="How deep.")


class Sampling(Config):
    warmup_events: int = Field(default=50, ge=0, description="Events of a table that are all looked at first.")
    sample_rate: int = Field(default=5, ge=1, description="After that, one in so many.")


class SchemaSensing(Config):
    enabled: bool = Field(default=False, description="Infer schemas from the events themselves.")
    deep_inspect: DeepInspect = Field(default=DeepInspect(), description="Nested JSON.")
    sampling: Sampling = Field(default=Sampling(), description="How much is looked at.")


class Spark(Config):
    master: str = Field(default="local[*]", description="Where Spark runs: local[*], spark://, yarn, k8s://.")
    conf: dict[str, str] = Field(default={}, description="Spark settings, as in spark-defaults.conf.")
    lanes: int | None = Field(
        default=None, ge=1, le=4096, description="Lanes per batch when sharding.count is not given."
    )


class PipelineSpec(Config):
    source: SourceSpec = Field(description="The database whose changes are captured.")
    sinks: tuple[SinkSpec, ...] = Field(min_length=1, description="Where the changes go: one or more.")
    processors: tuple[Processor, ...] = Field(
        default=(), description="What happens to events on the way, in order. Not in this version: refused."
    )
    wire_format: WireFormat | None = Field(
        default=None,
        description="Format of every sink that sends events; a sink that does not take it is refused: docs/formats.md.",
    )
    sharding: Sharding = Field(default=Sharding(), description="How the work is spread over lanes.")
    batch: Batch = Field(default=Batch(), description="What one batch may hold.")
    commit_policy: CommitPolicy = Field(
        default=CommitPolicy(), description="Which sinks must have a batch before the checkpoint moves."
    )
    schema_sensing: SchemaSensing = Field(
        default=SchemaSensing(), description="Schemas inferred from events. Not in this version: `enabled` is refused."
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

    @property
    def lanes(self) -> int | None:
        """How many lanes the document asks for; None leaves it to the stream (about one per core)."""
        return self.sharding.count or self.spark.lanes


class PipelineDocument(Config):
    metadata: Metadata = Field(description="Who the pipeline is.")
    spec: PipelineSpec = Field(description="What the pipeline does.")
