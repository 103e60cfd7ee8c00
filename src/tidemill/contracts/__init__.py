"""What the members of each family promise, and what they may rely on. Third parties write against this package.

component          what every member has: a config beside its class, and checks; check is one of those
source             what a source promises; byte_stream for those that read a socket, structure_history for those whose
                   stream does not describe its tables
snapshot           tables that can be copied while they change; catalog_scan a catalog that can be compared
processor          what a processor promises
format             what a wire format promises to sinks
sink               what a sink promises; audit for those that `verify` asks, recovery for those that keep rows
checkpoint_store   where positions of delivery are kept
state_store        where the rest is kept; parts of it are snapshot_store, schema_change_store, sensing_store,
                   installation and lease
registry_database  where a schema registry keeps its rows
"""

from tidemill.contracts.audit import AuditedSink, RowAudit, RowDifference, RowFault, ValuePair
from tidemill.contracts.byte_stream import ByteStreamSource, Decoder
from tidemill.contracts.check import Check, Notice, Outcome
from tidemill.contracts.checkpoint_store import CheckpointStore
from tidemill.contracts.component import Component
from tidemill.contracts.format import BatchWriter, Format, WireFormat
from tidemill.contracts.processor import BaseProcessor, ProcessorConfig
from tidemill.contracts.recovery import RecoverableSink
from tidemill.contracts.sink import BaseSink, Capabilities, Place, Sink, SinkConfig
from tidemill.contracts.snapshot import (
    ChunkReading,
    CopiedSourceConfig,
    LoggingInReader,
    MarkingSource,
    SilentSource,
    SnapshotConfig,
    SnapshotReader,
    SnapshotSource,
)
from tidemill.contracts.snapshot_store import ChunkCopy, SnapshotRecord, SnapshotStore, TableCopy
from tidemill.contracts.source import (
    Fencing,
    Passage,
    Removable,
    Resting,
    Schemas,
    SlotHolder,
    Source,
    SourceConfig,
    Triggered,
)
from tidemill.contracts.state_store import ConfirmedPosition, LostRange, StateStore, Transition
from tidemill.contracts.structure_history import Structure, StructureHistory, history_of
from tidemill.model.config import Config

__all__ = [
    "AuditedSink",
    "BaseProcessor",
    "BaseSink",
    "BatchWriter",
    "ByteStreamSource",
    "Capabilities",
    "Check",
    "CheckpointStore",
    "ChunkCopy",
    "ChunkReading",
    "Component",
    "Config",
    "ConfirmedPosition",
    "CopiedSourceConfig",
    "Decoder",
    "Fencing",
    "Format",
    "LoggingInReader",
    "LostRange",
    "MarkingSource",
    "Notice",
    "Outcome",
    "Passage",
    "Place",
    "ProcessorConfig",
    "RecoverableSink",
    "Removable",
    "Resting",
    "RowAudit",
    "RowDifference",
    "RowFault",
    "Schemas",
    "SilentSource",
    "Sink",
    "SinkConfig",
    "SlotHolder",
    "SnapshotConfig",
    "SnapshotReader",
    "SnapshotRecord",
    "SnapshotSource",
    "SnapshotStore",
    "Source",
    "SourceConfig",
    "StateStore",
    "Structure",
    "StructureHistory",
    "TableCopy",
    "Transition",
    "Triggered",
    "ValuePair",
    "WireFormat",
    "history_of",
]
