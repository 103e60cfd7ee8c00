"""How a group's batches may be spread over lanes, by what its sinks and processors need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidemill import registry
from tidemill.config.spec import Sharding


def single_lane(types: Iterable[str]) -> bool:
    """Whether a group with sinks of these types gets all of a batch in one lane."""
    return any(registry.load("sinks", kind).capabilities.single_lane for kind in types)


def ordering(sharding: Sharding, processors: Iterable[tuple[str, Mapping[str, Any]]]) -> Sharding:
    """How a batch is spread over lanes: by table where a processor changes keys, those of rows or of messages, because
    lanes are chosen by the captured key and what becomes one key must stay in one lane."""
    if any(config.get("changes_keys") or _sets_message_key(kind, config) for kind, config in processors):
        return Sharding(mode="table", count=sharding.count)
    return sharding


def _sets_message_key(kind: str, config: Mapping[str, Any]) -> bool:
    return bool(registry.load("processors", kind).sets_message_key(config))
