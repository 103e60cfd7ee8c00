"""Every error a user can meet: what happened, where, and what to do next.

    TidemillError
    ├── ConfigError          the document is wrong                       exit 2
    ├── EnvironmentProblem   something outside is missing or not allowed  exit 3
    │   └── SetupError       the database is not ready for capture
    ├── AlreadyRunning       another process works on the pipeline
    ├── SourceError          the source stream failed
    │   ├── ConnectionLost   the peer went away; connect again
    │   └── PositionLost     what we need is gone at the source; never jump
    ├── DecodeError          bytes that do not follow the protocol
    ├── RegistryError        the schema registry
    ├── LogError             the change log
    │   ├── LogFull          no room; capture waits
    │   ├── LogCorrupt       a checksum does not match before the tail
    │   ├── LogTakenOver     a newer writer has this log
    │   ├── SpillLost        a piece of an open transaction is gone; connect again
    │   └── BadAppend        a decoder's blocks break the log's rules: a defect of ours
    ├── CheckpointError      the checkpoint store
    │   └── CheckpointConflict   someone else moved it
    ├── StateError           the state store
    │   └── StateTooNew      a later version of Tidemill has used it
    ├── SparkLost            the JVM that runs the stream is gone
    ├── StreamError          a stream did not start, or a job of it was lost; no sink is to blame
    └── DeliveryError        a sink did not take a batch
        ├── DeadLettersFull  there is no room for what a sink will never take
        └── Refused          ... and never will: retrying is pointless
            └── Poisoned     ... because of some of its events, which it names

Whether an error is worth a retry is decided here, in `is_retryable`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping


class TidemillError(Exception):
    """`what` happened, `where` (component, file, position), and the `fix` to try."""

    exit_code: int = 1
    default_fix: str = ""  # for raisers that know nothing better

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix or self.default_fix

    def __str__(self) -> str:
        return "\n".join(part for part in (self.what, f"  at {self.where}" if self.where else "", self.fix) if part)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (Spark workers); keyword arguments need help to survive pickling.
        return (_rebuild, (type(self), self.what, self.where, self.fix))


def _rebuild(kind: type[TidemillError], what: str, where: str, fix: str) -> TidemillError:
    error = kind.__new__(kind)
    TidemillError.__init__(error, what, where=where, fix=fix)
    return error


class ConfigError(TidemillError):
    exit_code = 2


class EnvironmentProblem(TidemillError):
    exit_code = 3


class SetupError(EnvironmentProblem):
    pass


class AlreadyRunning(TidemillError):
    pass


class SourceError(TidemillError):
    pass


class ConnectionLost(SourceError):
    default_fix = "The connection is made again by itself; if it keeps breaking, look at the server and the network."


class PositionLost(SourceError):
    pass


SKIP = (
    'To go on without this one transaction: "tidemill resync FILE --skip-transaction" says what it is, asks, and'
    " captures everything after it. Copy what it changed to the destinations yourself."
)
"""The way out where capture cannot get past one transaction of the source."""


class DecodeError(TidemillError):
    default_fix = f"Report it with the server's version; a restart reads the same bytes again. {SKIP}"


class RegistryError(TidemillError):
    pass


class LogError(TidemillError):
    default_fix = "Look at the log's storage: room, permissions, reachability. Nothing is lost; it is tried again."


class LogFull(LogError):
    pass


class LogCorrupt(LogError):
    pass


class LogTakenOver(LogError):
    default_fix = "One capture may write a log, and the newest goes on. Find out who started the other one."


class SpillLost(LogError):
    default_fix = "Capture connects again by itself: the source then sends an open transaction from its beginning."


class BadAppend(LogError):
    default_fix = "Nothing of it was appended or acknowledged. Report it with the statements that changed the table."


class CheckpointError(TidemillError):
    pass


class CheckpointConflict(CheckpointError):
    pass


class StateError(TidemillError):
    pass


class StateTooNew(StateError):
    pass


class SparkLost(TidemillError):
    pass


class StreamError(TidemillError):
    pass


class DeliveryError(TidemillError):
    pass


class DeadLettersFull(DeliveryError):
    pass


class Refused(DeliveryError):
    pass


class Poisoned(Refused):
    """The destination will never take the events at these offsets, each with its reason.

    With dead letters on, the delivery is written again without them. A reason never quotes a row's values.
    """

    def __init__(self, reasons: Mapping[int, str], *, where: str = "", fix: str = "") -> None:
        self.reasons = dict(reasons)
        first = min(self.reasons)
        more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
        super().__init__(f"event {first}{more}: {self.reasons[first]}", where=where, fix=fix)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_poisoned, (self.reasons, self.where, self.fix))


def _rebuild_poisoned(reasons: Mapping[int, str], where: str, fix: str) -> Poisoned:
    return Poisoned(reasons, where=where, fix=fix)


_RETRYABLE: dict[type[BaseException], bool] = {
    ConfigError: False,
    EnvironmentProblem: False,
    AlreadyRunning: False,
    PositionLost: False,
    ConnectionLost: True,
    SourceError: True,
    DecodeError: False,
    RegistryError: True,
    LogFull: True,
    LogCorrupt: False,
    LogTakenOver: False,
    SpillLost: True,  # by a new connection; the same call again would find the same
    BadAppend: False,
    LogError: True,  # an I/O error of the log's storage: a full disk is freed, a mount comes back
    CheckpointConflict: False,
    CheckpointError: True,
    StateTooNew: False,
    StateError: True,
    SparkLost: False,  # the session died with it; a new process has a new one
    StreamError: True,
    Refused: False,
    DeliveryError: True,
    ConnectionError: True,
    TimeoutError: True,
    OSError: True,
}


def is_retryable(error: BaseException) -> bool:
    """The most specific class in the table decides; what is not in it is not retried."""
    return next((_RETRYABLE[kind] for kind in type(error).__mro__ if kind in _RETRYABLE), False)
