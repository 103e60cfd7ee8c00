import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    INIT: _ClassVar[Stage]
    SETUP: _ClassVar[Stage]
    SNAPSHOT: _ClassVar[Stage]
    CDC: _ClassVar[Stage]

class RecoverMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECOVER_MODE_UNSPECIFIED: _ClassVar[RecoverMode]
    SNAPSHOT_AGAIN: _ClassVar[RecoverMode]
    ACCEPT_GAP: _ClassVar[RecoverMode]
STAGE_UNSPECIFIED: Stage
INIT: Stage
SETUP: Stage
SNAPSHOT: Stage
CDC: Stage
RECOVER_MODE_UNSPECIFIED: RecoverMode
SNAPSHOT_AGAIN: RecoverMode
ACCEPT_GAP: RecoverMode

class PipelineRef(_message.Message):
    __slots__ = ("pipeline", "reason")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    reason: str
    def __init__(self, pipeline: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "what", "where", "fix")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    code: str
    what: str
    where: str
    fix: str
    def __init__(self, code: _Optional[str] = ..., what: _Optional[str] = ..., where: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class HealthReport(_message.Message):
    __slots__ = ("status", "stage", "stage_detail", "error_detail")
    class Serving(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SERVING_UNSPECIFIED: _ClassVar[HealthReport.Serving]
        SERVING: _ClassVar[HealthReport.Serving]
        NOT_SERVING: _ClassVar[HealthReport.Serving]
    SERVING_UNSPECIFIED: HealthReport.Serving
    SERVING: HealthReport.Serving
    NOT_SERVING: HealthReport.Serving
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGE_DETAIL_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAIL_FIELD_NUMBER: _ClassVar[int]
    status: HealthReport.Serving
    stage: Stage
    stage_detail: str
    error_detail: str
    def __init__(self, status: _Optional[_Union[HealthReport.Serving, str]] = ..., stage: _Optional[_Union[Stage, str]] = ..., stage_detail: _Optional[str] = ..., error_detail: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("pipeline", "seconds", "reason")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    seconds: float
    reason: str
    def __init__(self, pipeline: _Optional[str] = ..., seconds: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class PipelineState(_message.Message):
    __slots__ = ("pipeline", "state", "error")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    state: str
    error: ErrorDetail
    def __init__(self, pipeline: _Optional[str] = ..., state: _Optional[str] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ...) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ReloadReport(_message.Message):
    __slots__ = ("added", "changed", "removed")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    added: _containers.RepeatedScalarFieldContainer[str]
    changed: _containers.RepeatedScalarFieldContainer[str]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, added: _Optional[_Iterable[str]] = ..., changed: _Optional[_Iterable[str]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("pipeline", "tables", "where", "reason")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    where: str
    reason: str
    def __init__(self, pipeline: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., where: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RecoverRequest(_message.Message):
    __slots__ = ("pipeline", "mode", "reason")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    mode: RecoverMode
    reason: str
    def __init__(self, pipeline: _Optional[str] = ..., mode: _Optional[_Union[RecoverMode, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class RecoveryReport(_message.Message):
    __slots__ = ("pipeline", "consequence", "offset", "position_before", "position_after", "lost", "waiting", "snapshot")
    class WaitingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    CONSEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_BEFORE_FIELD_NUMBER: _ClassVar[int]
    POSITION_AFTER_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    consequence: str
    offset: int
    position_before: str
    position_after: str
    lost: str
    waiting: _containers.ScalarMap[str, int]
    snapshot: int
    def __init__(self, pipeline: _Optional[str] = ..., consequence: _Optional[str] = ..., offset: _Optional[int] = ..., position_before: _Optional[str] = ..., position_after: _Optional[str] = ..., lost: _Optional[str] = ..., waiting: _Optional[_Mapping[str, int]] = ..., snapshot: _Optional[int] = ...) -> None: ...

class SnapshotReport(_message.Message):
    __slots__ = ("id", "state", "tables")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    id: int
    state: str
    tables: _containers.RepeatedCompositeFieldContainer[TableProgress]
    def __init__(self, id: _Optional[int] = ..., state: _Optional[str] = ..., tables: _Optional[_Iterable[_Union[TableProgress, _Mapping]]] = ...) -> None: ...

class StatusReport(_message.Message):
    __slots__ = ("pipeline", "state", "stage", "began", "confirmed_position", "pending_events", "lag_bytes", "lag_seconds", "events", "sinks", "tables", "error", "notices", "current_position", "log_bytes")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_POSITION_FIELD_NUMBER: _ClassVar[int]
    PENDING_EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    state: str
    stage: Stage
    began: str
    confirmed_position: str
    pending_events: int
    lag_bytes: int
    lag_seconds: float
    events: int
    sinks: _containers.RepeatedCompositeFieldContainer[SinkProgress]
    tables: _containers.RepeatedCompositeFieldContainer[TableProgress]
    error: ErrorDetail
    notices: _containers.RepeatedCompositeFieldContainer[Notice]
    current_position: str
    log_bytes: int
    def __init__(self, pipeline: _Optional[str] = ..., state: _Optional[str] = ..., stage: _Optional[_Union[Stage, str]] = ..., began: _Optional[str] = ..., confirmed_position: _Optional[str] = ..., pending_events: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_seconds: _Optional[float] = ..., events: _Optional[int] = ..., sinks: _Optional[_Iterable[_Union[SinkProgress, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[TableProgress, _Mapping]]] = ..., error: _Optional[_Union[ErrorDetail, _Mapping]] = ..., notices: _Optional[_Iterable[_Union[Notice, _Mapping]]] = ..., current_position: _Optional[str] = ..., log_bytes: _Optional[int] = ...) -> None: ...

class SinkProgress(_message.Message):
    __slots__ = ("sink", "state", "offset", "lag_events", "dead_letters", "error")
    SINK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_EVENTS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    sink: str
    state: str
    offset: int
    lag_events: int
    dead_letters: int
    error: str
    def __init__(self, sink: _Optional[str] = ..., state: _Optional[str] = ..., offset: _Optional[int] = ..., lag_events: _Optional[int] = ..., dead_letters: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class TableProgress(_message.Message):
    __slots__ = ("table", "state", "rows", "estimate", "error")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    table: str
    state: str
    rows: int
    estimate: int
    error: str
    def __init__(self, table: _Optional[str] = ..., state: _Optional[str] = ..., rows: _Optional[int] = ..., estimate: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("code", "subject", "what", "fix")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    code: str
    subject: str
    what: str
    fix: str
    def __init__(self, code: _Optional[str] = ..., subject: _Optional[str] = ..., what: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ("pipeline", "interval_ms")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    interval_ms: int
    def __init__(self, pipeline: _Optional[str] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class MetricsSample(_message.Message):
    __slots__ = ("at", "state", "events_per_second", "lag_bytes", "lag_events", "lag_ms", "memory_bytes", "total_events", "total_batches", "total_dead_letters")
    AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_EVENTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BATCHES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    state: str
    events_per_second: float
    lag_bytes: int
    lag_events: int
    lag_ms: float
    memory_bytes: int
    total_events: int
    total_batches: int
    total_dead_letters: int
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[str] = ..., events_per_second: _Optional[float] = ..., lag_bytes: _Optional[int] = ..., lag_events: _Optional[int] = ..., lag_ms: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., total_events: _Optional[int] = ..., total_batches: _Optional[int] = ..., total_dead_letters: _Optional[int] = ...) -> None: ...
