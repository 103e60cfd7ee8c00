"""Named events with fields: `emit("capture.connected", source="orders", position="16/B374D848")`.

What is bound in `context` (pipeline, stage, sink) stands in every event before its own fields.

Normal work is metrics, not events. WARNING means degraded but safe; ERROR means data at risk or a pipeline stopped.
Fields never hold a row's values or a secret.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

import orjson

from tidemill.telemetry.context import current
from tidemill.telemetry.plain_text import without_controls

LOGGER = logging.getLogger("tidemill")
_LEVEL = "TIDEMILL_LOG_LEVEL"


def emit(name: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """One event. `name` is `part.what_happened`, in the past tense."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, name, extra={"fields": {**current(), **fields}})


def warn(name: str, /, **fields: Any) -> None:
    emit(name, logging.WARNING, **fields)


def fail(name: str, /, **fields: Any) -> None:
    emit(name, logging.ERROR, **fields)


def emit_again(name: str, level: int, time: float, fields: Mapping[str, Any]) -> None:
    """An event that another process emitted, as it was there."""
    if LOGGER.isEnabledFor(level):
        record = LOGGER.makeRecord(LOGGER.name, level, "", 0, name, (), None, extra={"fields": dict(fields)})
        record.created = time
        LOGGER.handle(record)


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Of an event; what a module wrote to its own logger has the context at least. In the thread that emitted it."""
    fields: Mapping[str, Any] | None = getattr(record, "fields", None)
    return current() if fields is None else fields


def configure(*, level: str | None = None, stream: Any = None) -> None:
    """Events go to standard error (or `stream`): lines for people, or with TIDEMILL_LOG=json for machines. Without a
    `level` that of TIDEMILL_LOG_LEVEL, else INFO."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Machine() if os.environ.get("TIDEMILL_LOG") == "json" else _Human())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel((level or os.environ.get(_LEVEL) or "INFO").upper())
    LOGGER.propagate = False


def adopt(*names: str) -> None:
    """What these loggers of libraries say looks like our events, once `configure` has said where those go."""
    for name in names if LOGGER.handlers else ():
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = LOGGER.handlers, False


def level() -> str:
    return logging.getLevelName(LOGGER.getEffectiveLevel())


def set_level(name: str) -> None:
    """Of this process, and of those that it starts from now on."""
    LOGGER.setLevel(name)
    os.environ[_LEVEL] = name


class _Human(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        text = " ".join(f"{name}={_quote(value)}" for name, value in {**fields, **_foreign(self, record)}.items())
        return f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()} {text}".rstrip()


class _Machine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        doc = {"time": record.created, "level": record.levelname, "event": record.getMessage(), **fields}
        return orjson.dumps({**doc, **_foreign(self, record)}, default=str).decode()


def _foreign(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, str]:
    """Of what a library logged: which, and its traceback."""
    found = {} if record.name.partition(".")[0] == LOGGER.name else {"logger": record.name}
    return found | ({"traceback": formatter.formatException(record.exc_info)} if record.exc_info else {})


def _quote(value: object) -> str:
    text = without_controls(" ".join(str(value).split()))  # one event, one line
    if not text or " " in text or '"' in text:
        return '"' + text.replace('"', '\\"') + '"'
    return text
