"""Which sources, sinks, formats, processors and checkpoint stores this installation has, for who writes documents."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidemill import registry
from tidemill.contracts import BaseSink, Component
from tidemill.errors import ConfigError

FAMILIES = ("sources", "processors", "formats", "sinks", "checkpoints")


@dataclass(frozen=True, slots=True)
class ComponentInfo:
    """`formats` are the wire formats that a sink takes, `capabilities` what else one can do; `schema` is that of its
    `config:`, None for one without."""

    family: str
    name: str
    about: str
    formats: tuple[str, ...]
    installed: bool
    schema: dict[str, Any] | None
    capabilities: SinkCapabilities | None = None


@dataclass(frozen=True, slots=True)
class SinkCapabilities:
    """As its type can; as it is configured it may do less. `delivery` says what a replay does there, empty if the sink
    does not say it; `schema_changes` what it makes at the destination too, `one_lane` that all of a batch comes in
    order, `upsert` that it keeps the current row of each key."""

    delivery: str
    schema_changes: tuple[str, ...]
    one_lane: bool
    upsert: bool


def families() -> list[str]:
    return [family for family in FAMILIES if importlib.util.find_spec(f"tidemill.{family}")]


def list_components(family: str | None = None) -> Iterator[ComponentInfo]:
    if family is not None and family not in families():
        raise ConfigError(f'there is no family "{family}"', fix=f"There are: {', '.join(families())}.")
    for each in families() if family is None else [family]:
        for name in registry.names(each):
            yield describe(each, name)


def describe(family: str, name: str) -> ComponentInfo:
    """`ConfigError` with the nearest name if there is none. One whose driver is missing is only named."""
    if family not in families():
        raise ConfigError(f'there is no family "{family}"', fix=f"There are: {', '.join(families())}.")
    try:
        kind = registry.load(family, name)
    except ImportError:
        return ComponentInfo(family, name, "", (), False, None)
    ours = sys.modules.get(f"tidemill.{family}.{name}")  # its page begins with the same words
    about = " ".join(((ours or kind).__doc__ or "").strip().partition("\n\n")[0].split())
    formats = tuple(sorted(kind.capabilities.formats)) if issubclass(kind, BaseSink) else ()
    config = kind.Config if issubclass(kind, Component) else None
    schema = config.model_json_schema() if config else None
    can = _capabilities(kind) if issubclass(kind, BaseSink) else None
    return ComponentInfo(family, name, about, formats, True, schema, can)


def _capabilities(kind: type[BaseSink[Any]]) -> SinkCapabilities:
    can = kind.capabilities
    kinds = tuple(sorted(each.value for each in can.schema_changes))
    return SinkCapabilities(getattr(kind, "mechanism", ""), kinds, can.single_lane, can.upsert)
