"""What the members of each family promise, and what they may rely on. Third parties write against this package."""

from tidemill.contracts.byte_stream import ByteStreamSource, Decoder
from tidemill.contracts.check import Check, Notice, Outcome
from tidemill.contracts.checkpoint_store import CheckpointStore
from tidemill.contracts.component import Component
from tidemill.contracts.format import BatchWriter, Format, WireFormat
from tidemill.contracts.sink import BaseSink, Capabilities, Place, Sink, SinkConfig
from tidemill.contracts.source import Passage, Resting, Schemas, Source, SourceConfig
from tidemill.contracts.state_store import ConfirmedPosition, LastStatus, LostRange, StateStore, Transition
from tidemill.contracts.structure_history import Structure, StructureHistory, history_of
from tidemill.model.config import Config

__all__ = [
    "BaseSink",
    "BatchWriter",
    "ByteStreamSource",
    "Capabilities",
    "Check",
    "CheckpointStore",
    "Component",
    "Config",
    "ConfirmedPosition",
    "Decoder",
    "Format",
    "LastStatus",
    "LostRange",
    "Notice",
    "Outcome",
    "Passage",
    "Place",
    "Resting",
    "Schemas",
    "Sink",
    "SinkConfig",
    "Source",
    "SourceConfig",
    "StateStore",
    "Structure",
    "StructureHistory",
    "Transition",
    "WireFormat",
    "history_of",
]
