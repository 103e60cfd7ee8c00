"""What the capture process says of itself, in one small file that the supervisor and the command line read.

`capture.json` in the pipeline's state directory: two slots, written in place, of which one is whole. A new file a few
times a second would be work for the file system's journal, which appends wait for (`disk/slots.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tidemill.disk.slots import overwrite, read_document
from tidemill.errors import ErrorData, TidemillError, to_data
from tidemill.model.position import Offset, Position
from tidemill.telemetry import events

_STATUS, _NUMBER = "capture.json", "number"
_INTERVAL = 0.25


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """`stage` is init, setup, cdc, stopped or failed. `error` is the last trouble, empty when all is well.
    `notices` are the source's: the stream goes on, but somebody must know.
    `streaming_since` is when this process first had a stream, seconds since 1970, 0 before that; `began` is the
    source's position where that was, after which it `resumed` if the pipeline had run before. `caught_up`: the log has
    all that the source had then; only said where it was asked for (`run --once`). `main_since`: when the process had
    loaded its modules. `tables` are events by table, of the busiest so many, and `table_bytes` their bytes in the
    log; `busy_seconds` those in which it read and wrote changes, without what it waited for; `appends` and `bytes` what
    it has written to the log; `slot_bytes` what PostgreSQL keeps for the slot, `undelivered_bytes` what the log holds
    for the stream. `reached`: the log has everything of the source up to there, which is further than `position` where
    nothing was captured since."""

    pid: int
    stage: str = "init"
    events: int = 0
    offset: int = 0
    position: str = ""
    reached: str = ""
    lag_bytes: int | None = None
    error: ErrorData = field(default_factory=ErrorData)
    notices: tuple[dict[str, str], ...] = ()
    exit_code: int = 0
    streaming_since: float = 0.0
    began: str = ""
    resumed: bool = False
    caught_up: bool = False
    time: float = 0.0
    main_since: float = 0.0
    tables: dict[str, int] = field(default_factory=dict)
    table_bytes: dict[str, int] = field(default_factory=dict)
    busy_seconds: float = 0.0
    slot_bytes: int | None = None
    undelivered_bytes: int = 0
    appends: int = 0
    bytes: int = 0


class StatusFile:
    """Written at most a few times a second, and at once when the stage changes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / _STATUS
        self._status = CaptureStatus(os.getpid(), main_since=time.time())
        self._written = 0.0
        self._due = False  # what was said last is not written

    def note_reached(self, reached: Callable[[], Position], offset: Offset) -> None:
        """For every turn: `reached` is asked only when a status would be written."""
        if time.time() - self._written <= _INTERVAL:
            return
        if (now := reached()) != self._status.reached:
            self.update(reached=now, offset=offset)

    def update(self, *, now: bool = False, **changes: Any) -> None:
        stage = self._status.stage
        self._status = replace(self._status, **changes, time=time.time())
        self._due = True
        if now or self._status.stage != stage:
            self._write()
        else:
            self.write_due()

    def write_due(self) -> None:
        """Writes what came too soon after the status before it. Who updates seldom calls it in between."""
        if self._due and time.time() - self._written > _INTERVAL:
            self._write()

    def _write(self) -> None:
        self._written, self._due = time.time(), False
        try:
            overwrite(self._path, asdict(self._status), _NUMBER)
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
        found = read_document((directory / _STATUS).read_bytes(), _NUMBER)
    except FileNotFoundError:
        return None
    return CaptureStatus(**{name: value for name, value in found.items() if name != _NUMBER}) if found else None
