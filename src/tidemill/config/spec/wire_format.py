"""`wire_format:` of a pipeline: the format of every sink that sends events, checked and filled in.

Called by `resolve` for each sink before its own model sees the settings. Sinks with columns of their own (a database)
send no format and are left alone.
"""

from __future__ import annotations

from typing import Any

from tidemill import registry
from tidemill.config.document import Document
from tidemill.config.problem import Path, Problem
from tidemill.contracts import BaseSink
from tidemill.errors import ConfigError


def enforce(wire_format: Any, sink: Any, at: Path, document: Document, problems: list[Problem]) -> Any:
    """The sink with the pipeline's format, unless it names that itself. Parts of the wrong shape are left to others."""
    if not isinstance(wire_format, str) or not isinstance(sink, dict) or not isinstance(sink.get("type"), str):
        return sink
    try:
        kind = registry.load("sinks", sink["type"])
    except (ConfigError, ImportError):
        return sink
    taken: frozenset[str] = kind.capabilities.formats if issubclass(kind, BaseSink) else frozenset()
    settings = sink.get("config")
    settings = {} if settings is None else settings
    if not taken or not isinstance(settings, dict):
        return sink
    if wire_format not in taken:
        problems.append(
            document.problem(
                (*at, "type"),
                f'the sink "{sink["type"]}" does not take wire_format {wire_format}',
                f"It takes {', '.join(sorted(taken))}. Remove wire_format, or the sink.",
            )
        )
        return sink
    if settings.get("format", wire_format) != wire_format:
        problems.append(
            document.problem(
                (*at, "config", "format"),
                f"the pipeline's wire_format is {wire_format}, not {settings['format']}",
                "Remove one of the two.",
            )
        )
    return {**sink, "config": {**settings, "format": wire_format}}
