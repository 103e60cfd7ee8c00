"""What the capture process says of itself, in one small file that the supervisor and the command line read.

`capture.json` in the pipeline's state directory, replaced atomically. `confirmed.json` beside it is state, not status:
the last position confirmed to the source, on disk before it is said.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from tidemill.disk.replace import replace_file
from tidemill.errors import ErrorData, LogError, TidemillError, to_data
from tidemill.model.position import Offset, Position
from tidemill.telemetry import events

_STATUS, _CONFIRMED = "capture.json", "confirmed.json"
_INTERVAL = 0.25


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """`stage` is init, setup, cdc, stopped or failed. `error` is the last trouble, empty when all is well.
    `notices` are the source's: the stream goes on, but somebody must know.
    `streaming_since` is when this process first had a stream, seconds since 1970, 0 before that; `began` is the
    source's position where that was, after which it `resumed` if the pipeline had run before."""

    pid: int
    stage: str = "init"
    events: int = 0
    offset: int = 0
    position: str = ""
    lag_bytes: int | None = None
    error: ErrorData = field(default_factory=ErrorData)
    notices: tuple[dict[str, str], ...] = ()
    exit_code: int = 0
    streaming_since: float = 0.0
    began: str = ""
    resumed: bool = False
    time: float = 0.0


class StatusFile:
    """Written at most a few times a second, and at once when the stage changes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _STATUS
        self._status = CaptureStatus(os.getpid())
        self._written = 0.0

    def update(self, *, now: bool = False, **changes: Any) -> None:
        stage = self._status.stage
        self._status = replace(self._status, **changes, time=time.time())
        if now or self._status.stage != stage or self._status.time - self._written > _INTERVAL:
            self._written = self._status.time
            try:
                replace_file(self._path, orjson.dumps(asdict(self._status)), durable=False)
            except OSError as error:  # a full disk must not end capture because it cannot say that the disk is full
                events.warn("capture.status_not_written", error=error.strerror)

    def count(self, events: int) -> int:
        return self._status.events + events

    def streaming(self, position: Position, *, resumed: bool, notices: tuple[dict[str, str], ...]) -> None:
        """There is a stream; where and when counts for the first one of this process."""
        first: dict[str, Any] = {}
        if not self._status.streaming_since:
            first = {"streaming_since": time.time(), "began": position, "resumed": resumed}
        self.update(stage="cdc", error={}, notices=notices, **first)

    def last_error(self, error: TidemillError) -> None:
        self.update(now=True, error=to_data(error))


def read_status(directory: Path) -> CaptureStatus | None:
    """None before the first capture process has written."""
    try:
        return CaptureStatus(**orjson.loads((directory / _STATUS).read_bytes()))
    except FileNotFoundError:
        return None


def read_confirmed(directory: Path, logged: Offset) -> Position | None:
    """What the source was told, if the log still holds (or held and delivered) everything before it.

    With a log that ends earlier, moved away or lost, what was told covers events that nobody has: as if never said.
    """
    try:
        confirmed = orjson.loads((directory / _CONFIRMED).read_bytes())
    except FileNotFoundError:
        try:  # its name before version 0.2
            confirmed = orjson.loads((directory / "told.json").read_bytes())
        except FileNotFoundError:
            return None
    return Position(confirmed["position"]) if confirmed["offset"] <= logged else None


def write_confirmed(directory: Path, position: Position, offset: Offset) -> None:
    """`offset`: everything before it was delivered, or durably logged, when `position` was told."""
    try:
        replace_file(directory / _CONFIRMED, orjson.dumps({"position": position, "offset": offset}))
    except OSError as error:
        raise LogError(
            f"cannot note what the source is told: {error.strerror}",
            where=str(directory),
            fix="Make room on the disk of the state directory; capture goes on by itself.",
        ) from error


def forget_confirmed(directory: Path) -> None:
    """After a resync: the new slot was told nothing."""
    for name in (_CONFIRMED, "told.json"):
        (directory / name).unlink(missing_ok=True)
