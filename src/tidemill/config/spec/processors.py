"""The `processors:` of a document: both of their forms, and what is wrong only when several are seen together.

- {type: filter, id: paid, config: {where: ...}}          settings under `config:`
- {type: javascript, id: transform, inline: ..., limits: ...}   settings beside `type:`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill import registry
from tidemill.config.document import Document
from tidemill.config.problem import Path, Problem
from tidemill.contracts import ProcessorConfig
from tidemill.errors import ConfigError

Add = Callable[[Path, str, str], None]


def unfold(part: Any, at: Path, document: Document, problems: list[Problem]) -> tuple[Any, Path]:
    """The processor as {type, config}, and where its settings stand in the document. Parts of the wrong shape are left
    to others."""
    if not isinstance(part, dict):
        return part, at
    beside = {key: value for key, value in part.items() if key not in ("type", "config")}
    if "config" not in part:
        return {**{key: part[key] for key in ("type",) if key in part}, "config": beside}, at
    inside = part["config"]
    if not isinstance(inside, dict | None):
        return part, ()
    problems += [
        document.problem((*at, key), f'"{key}" stands beside config', "Put it under config.")
        for key in beside
        if key != "id"
    ]
    settings = {key: value for key, value in beside.items() if key == "id"} | (inside or {})
    if "id" in beside and "id" in (inside or {}):
        problems.append(document.problem((*at, "id"), "the id is given twice", "Remove one of them."))
    return {"type": part.get("type"), "config": settings}, (*at, "config")


def check_processors(spec: dict[str, Any], add: Add) -> None:
    parts = spec.get("processors")
    seen: set[str] = set()
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        config = part.get("config") if isinstance(part, dict) else None
        if not isinstance(config, ProcessorConfig) or type(config) is ProcessorConfig:
            continue  # it is wrong, and that was said
        if config.id in seen:
            add(("processors", index, "id"), f'two processors have the id "{config.id}"', "Give each one of its own.")
        seen.add(config.id)
        if config.on_error == "dead_letter" and "dlq" not in spec:
            add(
                ("processors", index, "on_error"),
                "on_error is dead_letter, but the pipeline keeps no dead letters",
                "Add `dlq: {}` to the spec, or choose halt or skip.",
            )
        if config.ops and _kind(part).whole_rows:
            add(
                ("processors", index, "ops"),
                f"{part['type']} changes the columns of a table, which all of its operations share",
                "Remove ops.",
            )


def _kind(part: dict[str, Any]) -> Any:
    try:
        return registry.load("processors", part["type"])
    except (ConfigError, ImportError) as error:
        raise AssertionError("its config was made by this class") from error
