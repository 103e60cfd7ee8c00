import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from tidemill.api.proto import operations_pb2 as _operations_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListFlowsRequest(_message.Message):
    __slots__ = ("state", "labels", "limit", "after")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    state: str
    labels: _containers.ScalarMap[str, str]
    limit: int
    after: str
    def __init__(self, state: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListFlowsReply(_message.Message):
    __slots__ = ("flows", "next_after")
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_AFTER_FIELD_NUMBER: _ClassVar[int]
    flows: _containers.RepeatedCompositeFieldContainer[Flow]
    next_after: str
    def __init__(self, flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ..., next_after: _Optional[str] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("name", "state", "version", "spec_json", "labels", "tenant", "error")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    version: str
    spec_json: str
    labels: _containers.ScalarMap[str, str]
    tenant: str
    error: _operations_pb2.ErrorDetail
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., version: _Optional[str] = ..., spec_json: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., tenant: _Optional[str] = ..., error: _Optional[_Union[_operations_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class CreateFlowRequest(_message.Message):
    __slots__ = ("document", "leave_stopped", "reason")
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_STOPPED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    document: str
    leave_stopped: bool
    reason: str
    def __init__(self, document: _Optional[str] = ..., leave_stopped: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class UpdateFlowRequest(_message.Message):
    __slots__ = ("pipeline", "merge_patch_json", "expect_version", "reason")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    MERGE_PATCH_JSON_FIELD_NUMBER: _ClassVar[int]
    EXPECT_VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    merge_patch_json: str
    expect_version: str
    reason: str
    def __init__(self, pipeline: _Optional[str] = ..., merge_patch_json: _Optional[str] = ..., expect_version: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class DeleteFlowRequest(_message.Message):
    __slots__ = ("pipeline", "expect_version", "reason")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    EXPECT_VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    expect_version: str
    reason: str
    def __init__(self, pipeline: _Optional[str] = ..., expect_version: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class DeleteFlowReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListChangesRequest(_message.Message):
    __slots__ = ("pipeline", "limit", "before")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    limit: int
    before: int
    def __init__(self, pipeline: _Optional[str] = ..., limit: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...

class ListChangesReply(_message.Message):
    __slots__ = ("changes", "next_before")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[SchemaChange]
    next_before: int
    def __init__(self, changes: _Optional[_Iterable[_Union[SchemaChange, _Mapping]]] = ..., next_before: _Optional[int] = ...) -> None: ...

class ChangeRef(_message.Message):
    __slots__ = ("pipeline", "number", "reason")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    number: int
    reason: str
    def __init__(self, pipeline: _Optional[str] = ..., number: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SchemaChange(_message.Message):
    __slots__ = ("number", "status", "table", "kinds", "offset", "position", "seen_at", "text", "decided_by", "decided_at", "reason", "sinks")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    DECIDED_AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    status: str
    table: str
    kinds: _containers.RepeatedScalarFieldContainer[str]
    offset: int
    position: str
    seen_at: str
    text: str
    decided_by: str
    decided_at: str
    reason: str
    sinks: _containers.RepeatedCompositeFieldContainer[SinkPlan]
    def __init__(self, number: _Optional[int] = ..., status: _Optional[str] = ..., table: _Optional[str] = ..., kinds: _Optional[_Iterable[str]] = ..., offset: _Optional[int] = ..., position: _Optional[str] = ..., seen_at: _Optional[str] = ..., text: _Optional[str] = ..., decided_by: _Optional[str] = ..., decided_at: _Optional[str] = ..., reason: _Optional[str] = ..., sinks: _Optional[_Iterable[_Union[SinkPlan, _Mapping]]] = ...) -> None: ...

class SinkPlan(_message.Message):
    __slots__ = ("sink", "statements", "status", "error")
    SINK_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    sink: str
    statements: _containers.RepeatedScalarFieldContainer[str]
    status: str
    error: str
    def __init__(self, sink: _Optional[str] = ..., statements: _Optional[_Iterable[str]] = ..., status: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[PlannedChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[PlannedChange, _Mapping]]] = ...) -> None: ...

class PlannedChange(_message.Message):
    __slots__ = ("offset", "table", "kinds", "text", "action", "sinks")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    table: str
    kinds: _containers.RepeatedScalarFieldContainer[str]
    text: str
    action: str
    sinks: _containers.RepeatedCompositeFieldContainer[SinkPlan]
    def __init__(self, offset: _Optional[int] = ..., table: _Optional[str] = ..., kinds: _Optional[_Iterable[str]] = ..., text: _Optional[str] = ..., action: _Optional[str] = ..., sinks: _Optional[_Iterable[_Union[SinkPlan, _Mapping]]] = ...) -> None: ...

class CheckpointsReport(_message.Message):
    __slots__ = ("checkpoint", "sinks")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    checkpoint: CheckpointNote
    sinks: _containers.RepeatedCompositeFieldContainer[SinkCheckpointNote]
    def __init__(self, checkpoint: _Optional[_Union[CheckpointNote, _Mapping]] = ..., sinks: _Optional[_Iterable[_Union[SinkCheckpointNote, _Mapping]]] = ...) -> None: ...

class CheckpointNote(_message.Message):
    __slots__ = ("offset", "position", "version", "saved_at", "note")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    position: str
    version: int
    saved_at: str
    note: str
    def __init__(self, offset: _Optional[int] = ..., position: _Optional[str] = ..., version: _Optional[int] = ..., saved_at: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class SinkCheckpointNote(_message.Message):
    __slots__ = ("sink", "own", "checkpoint")
    SINK_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    sink: str
    own: bool
    checkpoint: CheckpointNote
    def __init__(self, sink: _Optional[str] = ..., own: _Optional[bool] = ..., checkpoint: _Optional[_Union[CheckpointNote, _Mapping]] = ...) -> None: ...

class SetCheckpointRequest(_message.Message):
    __slots__ = ("pipeline", "offset", "since", "sink", "dry_run", "reason")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    offset: int
    since: _timestamp_pb2.Timestamp
    sink: str
    dry_run: bool
    reason: str
    def __init__(self, pipeline: _Optional[str] = ..., offset: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sink: _Optional[str] = ..., dry_run: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class SetCheckpointReply(_message.Message):
    __slots__ = ("consequence", "replayed", "skipped", "checkpoint")
    CONSEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    consequence: str
    replayed: int
    skipped: int
    checkpoint: CheckpointNote
    def __init__(self, consequence: _Optional[str] = ..., replayed: _Optional[int] = ..., skipped: _Optional[int] = ..., checkpoint: _Optional[_Union[CheckpointNote, _Mapping]] = ...) -> None: ...

class StreamRef(_message.Message):
    __slots__ = ("pipeline", "sink", "stream", "group")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    sink: str
    stream: str
    group: str
    def __init__(self, pipeline: _Optional[str] = ..., sink: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("stream", "limit", "visibility_seconds", "wait_seconds", "from_latest", "ordered", "max_bytes")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FROM_LATEST_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    limit: int
    visibility_seconds: float
    wait_seconds: float
    from_latest: bool
    ordered: bool
    max_bytes: int
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., limit: _Optional[int] = ..., visibility_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., from_latest: _Optional[bool] = ..., ordered: _Optional[bool] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("token", "messages")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    token: str
    messages: _containers.RepeatedCompositeFieldContainer[StreamMessage]
    def __init__(self, token: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[StreamMessage, _Mapping]]] = ...) -> None: ...

class StreamMessage(_message.Message):
    __slots__ = ("id", "attempts", "event_id", "op", "table", "offset", "commit_time", "key", "payload", "content_type")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    id: int
    attempts: int
    event_id: str
    op: str
    table: str
    offset: int
    commit_time: _timestamp_pb2.Timestamp
    key: bytes
    payload: bytes
    content_type: str
    def __init__(self, id: _Optional[int] = ..., attempts: _Optional[int] = ..., event_id: _Optional[str] = ..., op: _Optional[str] = ..., table: _Optional[str] = ..., offset: _Optional[int] = ..., commit_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., key: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., content_type: _Optional[str] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("stream", "token", "ids", "seconds", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    token: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    seconds: float
    reason: str
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., token: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ..., seconds: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class SettleReply(_message.Message):
    __slots__ = ("done", "lost")
    DONE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    done: _containers.RepeatedScalarFieldContainer[int]
    lost: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, done: _Optional[_Iterable[int]] = ..., lost: _Optional[_Iterable[int]] = ...) -> None: ...

class ReplayStreamRequest(_message.Message):
    __slots__ = ("stream", "lsn", "since", "offset", "dead")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    lsn: str
    since: _timestamp_pb2.Timestamp
    offset: int
    dead: bool
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., lsn: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., offset: _Optional[int] = ..., dead: _Optional[bool] = ...) -> None: ...

class ReplayStreamReply(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("pipeline", "limit")
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    limit: int
    def __init__(self, pipeline: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListRunsReply(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("id", "pipeline", "state", "slot", "actor", "queued", "started", "ended", "events", "attempts", "recoveries", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    pipeline: str
    state: str
    slot: str
    actor: str
    queued: str
    started: str
    ended: str
    events: int
    attempts: int
    recoveries: int
    error: _operations_pb2.ErrorDetail
    def __init__(self, id: _Optional[str] = ..., pipeline: _Optional[str] = ..., state: _Optional[str] = ..., slot: _Optional[str] = ..., actor: _Optional[str] = ..., queued: _Optional[str] = ..., started: _Optional[str] = ..., ended: _Optional[str] = ..., events: _Optional[int] = ..., attempts: _Optional[int] = ..., recoveries: _Optional[int] = ..., error: _Optional[_Union[_operations_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...
