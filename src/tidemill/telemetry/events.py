"""Named events with fields: `emit("capture.connected", source="orders", position="16/B374D848")`.

Normal work is metrics, not events. WARNING means degraded but safe; ERROR means data at risk or a pipeline stopped.
Fields never hold a row's values or a secret.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import orjson

_LOGGER = logging.getLogger("tidemill")


def emit(name: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """One event. `name` is `part.what_happened`, in the past tense."""
    _LOGGER.log(level, name, extra={"fields": fields})


def warn(name: str, /, **fields: Any) -> None:
    emit(name, logging.WARNING, **fields)


def fail(name: str, /, **fields: Any) -> None:
    emit(name, logging.ERROR, **fields)


def configure(*, level: str = "INFO", stream: Any = None) -> None:
    """Events go to standard error (or `stream`): lines for people, or with TIDEMILL_LOG=json for machines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Machine() if os.environ.get("TIDEMILL_LOG") == "json" else _Human())
    _LOGGER.handlers[:] = [handler]
    _LOGGER.setLevel(level.upper())
    _LOGGER.propagate = False


class _Human(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        text = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        return f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()} {text}".rstrip()


class _Machine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        doc = {"time": record.created, "level": record.levelname, "event": record.getMessage(), **fields}
        return orjson.dumps(doc, default=str).decode()


def _quoted(value: object) -> str:
    text = " ".join(str(value).split())  # one event, one line
    if not text or " " in text or '"' in text:
        return '"' + text.replace('"', '\\"') + '"'
    return text
