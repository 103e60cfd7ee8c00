"""Where the time of a start goes, for `tidemill run --profile-start`: from the process's birth to the first batch.

Stages of the driver follow each other. Capture and Spark's workers start beside them, in processes of their own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.capture.status import read_status
from tidemill.config import Pipeline
from tidemill.telemetry import events


@dataclass(frozen=True, slots=True)
class StartStage:
    """`begin` and `seconds` count from the process's birth."""

    part: str
    stage: str
    begin: float
    seconds: float


class StartProfile(logging.Filter):
    """Hears of Spark by our own events, of capture by its status file, and of the first batch by `note_batch`. A filter
    that passes everything stays where it is when events go elsewhere, as a handler would not."""

    def __init__(self) -> None:
        super().__init__()
        self._birth = birth_of(os.getpid()) or time.time()
        self._last = self._birth
        self._stages: list[StartStage] = []
        self._streams: dict[str, float] = {}  # when a pipeline's stream was started
        self._firsts: dict[str, float] = {}  # when its first batch had its checkpoint
        self._changing = threading.Lock()

    def install(self) -> None:
        """From now on events come by here."""
        events.LOGGER.addFilter(self)

    def note(self, stage: str) -> None:
        """The driver has come so far."""
        now = time.time()
        self._add("driver", stage, self._last, now)
        self._last = now

    def filter(self, record: logging.LogRecord) -> bool:
        fields, now = events.fields_of(record), record.created
        match record.getMessage():
            case "stream.spark_started":
                middle = now - fields["session_seconds"]
                self._add("driver", "other imports", self._last, middle - fields["java_seconds"])
                self._add("driver", "Java", middle - fields["java_seconds"], middle)
                self._add("driver", "Spark session", middle, now)
                self._last = now
            case "stream.workers_started":
                self._add("workers", "first workers", now - fields["seconds"], now)
            case "stream.started":
                self._streams.setdefault(str(fields.get("pipeline")), now)
        return True

    def note_batch(self, pipeline: str) -> None:
        self._firsts.setdefault(pipeline, time.time())

    def is_complete(self, names: Sequence[str]) -> bool:
        return all(name in self._firsts for name in names)

    def stages(self, pipelines: Sequence[Pipeline]) -> list[StartStage]:
        """In the order in which they began."""
        found = [*self._stages]
        for pipeline in pipelines:
            name, status = pipeline.name, read_status(pipeline.state_path)
            capture = f"capture of {name}"
            if status is not None and status.main_since and (born := birth_of(status.pid)):
                found.append(self._stage(capture, "imports", born, status.main_since))
                if status.streaming_since:
                    found.append(self._stage(capture, "set-up, login", status.main_since, status.streaming_since))
            if name in self._streams and name in self._firsts:
                found.append(self._stage(f"stream of {name}", "first batch", self._streams[name], self._firsts[name]))
        return sorted(found, key=lambda stage: stage.begin)

    def _add(self, part: str, stage: str, begin: float, end: float) -> None:
        with self._changing:
            self._stages.append(self._stage(part, stage, begin, end))

    def _stage(self, part: str, stage: str, begin: float, end: float) -> StartStage:
        return StartStage(part, stage, round(begin - self._birth, 2), round(end - begin, 2))


def birth_of(pid: int) -> float | None:
    """When a process began, seconds since 1970; None where the system does not say (proc(5), field 22 of stat)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    return time.time() - age
