"""Every error a user can meet: what happened, where, and what to do next.

    TidemillError
    ├── ConfigError          the document is wrong                       exit 2
    ├── EnvironmentProblem   something outside is missing or not allowed  exit 3
    │   └── SetupError       the database is not ready for capture
    ├── AlreadyRunning       another process works on the pipeline
    │   └── LeaseHeld        ... a server that shares the state store
    ├── LeaseLost            this server could not renew its lease in time, or another one has it
    ├── UnknownPipeline      the runtime has no pipeline of that name
    ├── LifecycleError       the pipeline is in a state that does not allow what was asked
    │   └── PipelineBusy     somebody else is changing it just now
    ├── ChangedMeanwhile     somebody else has changed it since it was read
    ├── AccessRefused        the token's role does not allow it          exit 3
    │   └── Unauthenticated  there is no valid token
    ├── TooManyStreams       a server has as many open streams as it allows
    ├── TooManyRequests      a caller asks more often than a server allows
    ├── ServerError          a server of Tidemill cannot be reached, or did not answer as one
    ├── SourceError          the source stream failed
    │   ├── ConnectionLost   the peer went away; connect again
    │   ├── StructureChanged a table that is copied has another structure by now; read the chunk again
    │   ├── TableLocked      somebody keeps a table that is copied from being read; try again
    │   └── PositionLost     what we need is gone at the source; never jump
    ├── DecodeError          bytes that do not follow the protocol
    ├── RegistryError        the schema registry
    ├── LogError             the change log
    │   ├── LogFull          no room; capture waits
    │   ├── LogCorrupt       a checksum does not match before the tail
    │   ├── LogTooNew        a newer version wrote this log
    │   ├── LogTakenOver     a newer writer has this log
    │   ├── StagingLost      what others staged for the log is gone; stage it again
    │   ├── SpillLost        a piece of an open transaction is gone; connect again
    │   └── BadAppend        a decoder's blocks break the log's rules: a defect of ours
    ├── CheckpointError      the checkpoint store
    │   └── CheckpointConflict   someone else moved it
    ├── StateError           the state store
    │   └── StateTooNew      a later version of Tidemill has used it
    ├── SparkLost            the JVM that runs the stream is gone
    ├── StreamError          a stream did not start, or a job of it was lost; no sink is to blame
    ├── SchemaChangeHalted   a policy or an operator says that the pipeline stops at a schema change
    ├── SchemaChangeNotApplied  a sink could not make a schema change
    ├── BarrierNotReached    what is before a schema change was not delivered in time
    ├── ProcessingError      a processor failed on some events, which it names
    └── DeliveryError        a sink did not take a batch
        ├── DeadLettersFull  there is no room for what a sink will never take
        └── Refused          ... and never will: retrying is pointless
            └── Poisoned     ... because of some of its events, which it names

Every class has a `code` of its own, which programs may rely on: it is never given to another class and stays when the
class is renamed. docs/reference/errors.md lists them all. Errors go from process to process as `to_data` and come back
as the same class by `from_data`.

Whether an error is worth a retry is decided here, in `is_retryable`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypedDict


class ErrorData(TypedDict, total=False):
    """An error as plain values, for files, status and `--json`. `bases` are the codes of its base classes, nearest
    first: who does not know the code can go by them."""

    code: str
    kind: str
    bases: list[str]
    what: str
    where: str
    fix: str
    exit_code: int


class TidemillError(Exception):
    """`what` happened, `where` (component, file, position), and the `fix` to try. A subclass that declares no `code`
    goes by that of its base."""

    code: str = "unexpected"
    exit_code: int = 1
    default_fix: str = ""  # for raisers that know nothing better

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix or self.default_fix

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, f"  at {self.where}" if self.where else "", self.fix) if part)

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "code" not in cls.__dict__:
            return
        known = _BY_CODE.setdefault(cls.code, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f'{cls.__qualname__}: the code "{cls.code}" is that of {known.__module__}.{known.__name__}')

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (Spark workers); keyword arguments need help to survive pickling.
        return (_rebuild, (type(self), self.what, self.where, self.fix), self.__dict__)


_BY_CODE: dict[str, type[TidemillError]] = {TidemillError.code: TidemillError}
"""Filled as modules with errors are imported; a component's are with the component."""


def to_data(error: TidemillError) -> ErrorData:
    above = [kind for kind in type(error).__mro__ if issubclass(kind, TidemillError) and kind is not TidemillError]
    codes = dict.fromkeys(kind.code for kind in above)
    return {
        "code": error.code, "kind": type(error).__name__, "bases": [code for code in codes if code != error.code],
        "what": error.what, "where": error.where, "fix": error.fix, "exit_code": error.exit_code,
    }  # fmt: skip


def from_data(data: ErrorData, default: type[TidemillError] = TidemillError) -> TidemillError:
    """The error as its own class. Where that is not known here, because a package that is not loaded defines it, as the
    nearest base that is, with its code kept; as `default` where nothing is known, as in files of older versions."""
    codes = [code for code in (data.get("code"), *data.get("bases", ())) if code]
    kind = next((_BY_CODE[code] for code in codes if code in _BY_CODE), default)
    error = _rebuild(kind, data.get("what", ""), data.get("where", ""), data.get("fix", ""))
    if codes and codes[0] != kind.code:
        error.code = codes[0]
    error.exit_code = data.get("exit_code", kind.exit_code)
    return error


def _rebuild(kind: type[TidemillError], what: str, where: str, fix: str) -> TidemillError:
    """Past the class's own `__init__`, which may ask for what it makes the words from."""
    error = kind.__new__(kind, what)
    TidemillError.__init__(error, what, where=where, fix=fix)
    return error


class ConfigError(TidemillError):
    code = "config-invalid"
    exit_code = 2


class UsageError(ConfigError):
    """A command line that no command understands."""

    code = "usage"


class EnvironmentProblem(TidemillError):
    code = "environment"
    exit_code = 3


class SetupError(EnvironmentProblem):
    code = "source-not-ready"


class AlreadyRunning(TidemillError):
    code = "already-running"


class LeaseHeld(AlreadyRunning):
    code = "lease-held"


class LeaseLost(TidemillError):
    code = "lease-lost"


class UnknownPipeline(TidemillError):
    code = "unknown-pipeline"


class LifecycleError(TidemillError):
    code = "lifecycle-refused"


class PipelineBusy(LifecycleError):
    code = "pipeline-busy"


class ChangedMeanwhile(TidemillError):
    code = "changed-meanwhile"


class AccessRefused(TidemillError):
    code = "access-refused"
    exit_code = 3


class Unauthenticated(AccessRefused):
    code = "unauthenticated"


class TooManyStreams(TidemillError):
    code = "too-many-streams"


class TooManyRequests(TidemillError):
    code = "too-many-requests"


class ServerError(TidemillError):
    code = "server-failed"


class SourceError(TidemillError):
    code = "source-failed"


class ConnectionLost(SourceError):
    code = "connection-lost"
    default_fix = "The connection is made again by itself; if it keeps breaking, look at the server and the network."


class PositionLost(SourceError):
    code = "position-lost"


SKIP = (
    'To go on without this one transaction: "tidemill recover FILE --skip-transaction" says what it is, asks, and'
    " captures everything after it. Copy what it changed to the destinations yourself."
)
"""The way out where capture cannot get past one transaction of the source."""


class StructureChanged(SourceError):
    code = "structure-changed"
    default_fix = "The chunk is read again with the structure that the table has now."


class TableLocked(SourceError):
    code = "table-locked"
    default_fix = "The copy of the table goes on when the lock is gone. The server tells who holds it (pg_locks)."


class DecodeError(TidemillError):
    code = "decode-failed"
    default_fix = f"Report it with the server's version; a restart reads the same bytes again. {SKIP}"


class RegistryError(TidemillError):
    code = "schema-registry-failed"


class LogError(TidemillError):
    code = "log-failed"
    default_fix = "Look at the log's storage: room, permissions, reachability. Nothing is lost; it is tried again."


class LogFull(LogError):
    code = "log-full"


class LogCorrupt(LogError):
    code = "log-corrupt"


class LogTooNew(LogError):
    code = "log-too-new"
    default_fix = (
        "A newer version of Tidemill wrote it: run that one. Nothing was changed. To go on with this version, move the"
        " log away: capture then resumes from the checkpoint."
    )


class LogTakenOver(LogError):
    code = "log-taken-over"
    default_fix = "One capture may write a log, and the newest goes on. Find out who started the other one."


class SpillLost(LogError):
    code = "spill-lost"
    default_fix = "Capture connects again by itself: the source then sends an open transaction from its beginning."


class StagingLost(LogError):
    code = "staging-lost"
    default_fix = "Nothing of it was appended: stage it again, under another id."


class BadAppend(LogError):
    code = "bad-append"
    default_fix = "Nothing of it was appended or acknowledged. Report it with the statements that changed the table."


class CheckpointError(TidemillError):
    code = "checkpoint-failed"


class CheckpointConflict(CheckpointError):
    code = "checkpoint-conflict"


class StateError(TidemillError):
    code = "state-failed"


class StateTooNew(StateError):
    code = "state-too-new"


class SparkLost(TidemillError):
    code = "spark-lost"


class StreamError(TidemillError):
    code = "stream-failed"


class SchemaChangeHalted(TidemillError):
    code = "schema-change-halted"


class SchemaChangeNotApplied(TidemillError):
    code = "schema-change-not-applied"


class BarrierNotReached(TidemillError):
    code = "barrier-not-reached"


class ProcessingError(TidemillError):
    """The processor will never get these events through, by offset, each with its reason. `on_error` of its config says
    what becomes of them. A reason never quotes a row's values."""

    code = "processing-failed"
    reasons: Mapping[int, str] = {}

    def __init__(self, reasons: Mapping[int, str], *, where: str = "", fix: str = "") -> None:
        self.reasons = dict(reasons)
        super().__init__(_name_of(self.reasons), where=where, fix=fix)


class DeliveryError(TidemillError):
    code = "delivery-failed"


class DeadLettersFull(DeliveryError):
    code = "dead-letters-full"


class Refused(DeliveryError):
    code = "refused"


class Poisoned(Refused):
    """The destination will never take the events at these offsets, each with its reason.

    With dead letters on, the delivery is written again without them. A reason never quotes a row's values. What came
    from another process has no reasons any more, only the words.

    `lacking` are those of the offsets that are refused only because they leave columns out of a row that the
    destination does not have: while a table is copied, the copy brings that row whole.
    """

    code = "poisoned"
    reasons: Mapping[int, str] = {}
    lacking: frozenset[int] = frozenset()

    def __init__(
        self, reasons: Mapping[int, str], *, lacking: Collection[int] = (), where: str = "", fix: str = ""
    ) -> None:
        self.reasons = dict(reasons)
        self.lacking = frozenset(lacking)
        super().__init__(_name_of(self.reasons), where=where, fix=fix)


def _name_of(reasons: Mapping[int, str]) -> str:
    first = min(reasons)
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"event {first}{more}: {reasons[first]}"


_RETRYABLE: dict[type[BaseException], bool] = {
    ConfigError: False, EnvironmentProblem: False, AlreadyRunning: False, UnknownPipeline: False,
    LifecycleError: False, ChangedMeanwhile: False, AccessRefused: False, TooManyStreams: True,
    TooManyRequests: True,
    LeaseLost: False,  # the run is over; a new one takes the lease again, if nobody else has it
    ServerError: True,
    PositionLost: False, ConnectionLost: True,
    SourceError: True, DecodeError: False, RegistryError: True,
    LogFull: True, LogCorrupt: False, LogTakenOver: False, LogTooNew: False, StagingLost: False,
    SpillLost: True,  # by a new connection; the same call again would find the same
    BadAppend: False,
    LogError: True,  # an I/O error of the log's storage: a full disk is freed, a mount comes back
    CheckpointConflict: False, CheckpointError: True, StateTooNew: False, StateError: True,
    SparkLost: False,  # the session died with it; a new process has a new one
    StreamError: True, SchemaChangeHalted: False, SchemaChangeNotApplied: False, BarrierNotReached: False,
    ProcessingError: False, Refused: False, DeliveryError: True,
    ConnectionError: True, TimeoutError: True, OSError: True,
}  # fmt: skip


def is_retryable(error: BaseException) -> bool:
    """The most specific class in the table decides; what is not in it is not retried."""
    return next((_RETRYABLE[kind] for kind in type(error).__mro__ if kind in _RETRYABLE), False)
