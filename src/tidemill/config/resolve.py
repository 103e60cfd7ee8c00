"""From a YAML document to a checked `PipelineDocument`, with every problem found in one pass.

Components are resolved first: the registry gives the class for a `type:`, its `Config` checks the `config:`. Then
the frame around them is checked, then what only several fields together can get wrong. Each step works on the raw
data and goes on after a failure, so that a user sees all mistakes at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from tidemill import registry
from tidemill.config.document import Document
from tidemill.config.explain import explain
from tidemill.config.problem import Path, Problem, suggest
from tidemill.config.spec import PipelineDocument
from tidemill.config.spec.processors import check_processors, unfold
from tidemill.config.spec.wire_format import enforce
from tidemill.contracts import BaseSink, Config, ProcessorConfig, SinkConfig, SourceConfig
from tidemill.errors import ConfigError

# Types that documents of the reference systems name and a later version brings.
_PLANNED = {
    "sources": set(),
    "sinks": {"delta", "iceberg"},
}

_NO_SINK = SinkConfig(id="unknown")
_PLACEHOLDERS: dict[str, Config] = {
    "sources": SourceConfig(id="unknown"), "sinks": _NO_SINK, "checkpoints": Config(),
    "processors": ProcessorConfig(id="unknown"),
}  # fmt: skip


def resolve(document: Document) -> tuple[PipelineDocument | None, list[Problem]]:
    """The pipeline, or None with the problems that are in its way."""
    data = document.data
    if not isinstance(data, dict):
        return None, [document.problem((), "a pipeline is a mapping", "It needs `metadata:` and `spec:`.")]
    problems = [
        document.problem(path, "the text has the character NUL", "Remove it: no path, name or database keeps one.")
        for path in _find_nul(data, ())
    ]
    if problems:
        return None, problems
    spec = data.get("spec")
    if isinstance(spec, dict):
        spec = _resolve_components(spec, document, problems)
        data = {**data, "spec": spec}
        _cross_check(spec, document, problems)
        if "dlq" in spec and spec["dlq"] is None:
            spec["dlq"] = {}  # `dlq:` left empty means: on, with all defaults
    try:
        result = PipelineDocument.model_validate(data)
    except ValidationError as error:
        problems += explain(error, PipelineDocument, document, ())
        return None, problems
    return (None if problems else result), problems


def _find_nul(value: Any, path: Path) -> Iterator[Path]:
    match value:
        case str() if "\0" in value:
            yield path
        case dict():
            for key, item in value.items():
                yield from [path] if "\0" in key else _find_nul(item, (*path, key))
        case list():
            for index, item in enumerate(value):
                yield from _find_nul(item, (*path, index))


def _resolve_components(spec: dict[str, Any], document: Document, problems: list[Problem]) -> dict[str, Any]:
    """A copy of the spec in which every `config:` is an instance of its component's model."""
    resolved = dict(spec)
    if "source" in spec:
        resolved["source"] = _component("sources", spec["source"], ("spec", "source"), document, problems)
    if isinstance(spec.get("sinks"), list):
        resolved["sinks"] = []
        for index, sink in enumerate(spec["sinks"]):
            at = ("spec", "sinks", index)
            sink = enforce(spec.get("wire_format"), sink, at, document, problems)
            resolved["sinks"].append(_component("sinks", sink, at, document, problems))
    if isinstance(spec.get("processors"), list):
        resolved["processors"] = []
        for index, part in enumerate(spec["processors"]):
            at = ("spec", "processors", index)
            whole, settings_at = unfold(part, at, document, problems)
            resolved["processors"].append(_component("processors", whole, at, document, problems, settings_at))
    if (sink := _drift_sink(spec)) is not None:
        place: Path = ("spec", *_DRIFT_SINK)
        sink = enforce(spec.get("wire_format"), sink, place, document, problems)
        sensing = dict(spec["schema_sensing"])
        sensing["drift"] = {**sensing["drift"], "sink": _component("sinks", sink, place, document, problems)}
        resolved["schema_sensing"] = sensing
    checkpoints = spec.get("checkpoints", {})
    if isinstance(checkpoints, dict):
        checkpoints = {"type": "file", **checkpoints}
    resolved["checkpoints"] = _component("checkpoints", checkpoints, ("spec", "checkpoints"), document, problems)
    return resolved


_DRIFT_SINK = ("schema_sensing", "drift", "sink")


def _drift_sink(spec: dict[str, Any]) -> dict[str, Any] | None:
    found: Any = spec
    for name in _DRIFT_SINK:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _component(
    family: str, part: Any, at: Path, document: Document, problems: list[Problem], settings_at: Path = ()
) -> Any:
    """`settings_at` is where its settings stand, unless that is under `config:`."""
    nothing = _PLACEHOLDERS[family]
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        # The frame says what is wrong; a placeholder keeps it from complaining about `config` as well.
        return {**part, "config": nothing} if isinstance(part, dict) else part
    name = part["type"]
    settings = part.get("config")
    settings = {} if settings is None else settings  # `config:` left empty means: all defaults
    try:
        kind = registry.load(family, name)
        model: type[Config] = kind.Config
    except ConfigError as error:
        problems.append(document.problem((*at, "type"), *_unknown(family, name, error)))
        return {**part, "config": nothing}
    except ImportError as error:
        if (error.name or "tidemill").startswith("tidemill"):
            raise  # a mistake of ours, not a missing driver
        problems.append(
            document.problem(
                (*at, "type"),
                f'{family.removesuffix("s")} "{name}" needs a package that is not installed: {error.name}',
                # Built-in sinks import theirs on use, and `doctor` names their extra.
                f"Install it: pip install {(error.name or '').partition('.')[0]}.",
            )
        )
        return {**part, "config": nothing}
    if family == "sinks" and not issubclass(kind, BaseSink):
        problems.append(
            document.problem(
                (*at, "type"),
                f'the sink "{name}" was written for another version: it does not say its capabilities',
                f"Install a version of {kind.__module__} whose class extends tidemill.contracts.BaseSink.",
            )
        )
        return {**part, "config": nothing}
    try:
        return {**part, "config": model.model_validate(settings)}
    except ValidationError as error:
        problems += explain(error, model, document, settings_at or (*at, "config"))
    except ConfigError as error:
        problems.append(document.problem(settings_at or (*at, "config"), error.what, error.fix))
    return {**part, "config": nothing}


def _unknown(family: str, name: str, error: ConfigError) -> tuple[str, str]:
    if name in _PLANNED.get(family, ()):
        kind = {"checkpoints": "checkpoint store"}.get(family, family.removesuffix("s"))
        return f'the {kind} "{name}" is not in this version', suggest("", registry.names(family), noun="There are")
    return error.what, error.fix


def _cross_check(spec: dict[str, Any], document: Document, problems: list[Problem]) -> None:
    """What is wrong only when fields are seen together. Parts of the wrong shape are left to the frame."""

    def add(path: Path, what: str, fix: str) -> None:
        problems.append(document.problem(("spec", *path), what, fix))

    sinks = [s for s in spec["sinks"] if isinstance(s, dict)] if isinstance(spec.get("sinks"), list) else []
    configs: list[SinkConfig] = [s["config"] for s in sinks]
    ids = [None if config is _NO_SINK else config.id for config in configs]
    drift_sink = _drift_sink(spec)
    if drift_sink is not None and drift_sink["config"].id in ids:
        add((*_DRIFT_SINK, "config", "id"), f'two sinks have the id "{drift_sink["config"].id}"',
            "Drift has a sink of its own: give it another id.")  # fmt: skip
    for index, name in enumerate(ids):
        if name is not None and Counter(ids[:index])[name]:
            first = document.line(("spec", "sinks", ids.index(name), "config", "id"))
            add(("sinks", index, "config", "id"), f'two sinks have the id "{name}"', f"Line {first} has it already.")

    policy = spec.get("commit_policy")
    policy = policy if isinstance(policy, dict) else {}
    mode, quorum = policy.get("mode", "required"), policy.get("quorum")
    if mode == "quorum" and quorum is None:
        add(("commit_policy",), '"quorum" is missing', f"Mode quorum needs a number from 1 to {len(sinks)}.")
    elif mode == "quorum" and isinstance(quorum, int) and sinks and quorum > len(sinks):
        add(
            ("commit_policy", "quorum"),
            f"a quorum of {quorum} is more than the number of sinks, {len(sinks)}",
            f"Give a number from 1 to {len(sinks)}.",
        )
    elif mode in ("all", "required") and quorum is not None:
        add(("commit_policy", "quorum"), f"mode {mode} has no quorum", "Remove it, or set mode: quorum.")
    if mode == "required" and sinks and not any(config.required for config in configs):
        add(
            ("commit_policy",) if policy else ("sinks",),
            "no sink is required, so nothing would hold the checkpoint back",
            "Mark one sink `required: true`, or set commit_policy.mode to all or quorum.",
        )

    sharding, spark = spec.get("sharding"), spec.get("spark")
    sharding, spark = (part if isinstance(part, dict) else {} for part in (sharding, spark))
    if sharding.get("mode") == "table" and sharding.get("key") is not None:
        add(("sharding", "key"), "mode table does not use a key", "Remove it, or set mode: hash.")
    if sharding.get("count") and spark.get("lanes") and sharding["count"] != spark["lanes"]:
        add(("spark", "lanes"), "differs from sharding.count, which means the same", "Give one of them.")

    check_processors(spec, add)
