"""From a pipeline's document to the barrier of schema changes that its streams have, and what status says of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace
from typing import Any

from tidemill.config import Pipeline
from tidemill.config.secrets import reveal
from tidemill.config.spec.ddl import Ddl
from tidemill.contracts.schema_change_store import SchemaChangeStore, StoredChange
from tidemill.log.reader import LogReader
from tidemill.model.quarantine import Quarantine
from tidemill.model.tablenames import TableNames
from tidemill.schema.policy import ChangePolicy, ChangeRule
from tidemill.state import find_store
from tidemill.stream.batch.plan import share_views
from tidemill.stream.position.commit_policy import SinkGroup, policy_of
from tidemill.stream.schema.barrier import BarrierSettings, SchemaBarrier


def policy_of_changes(ddl: Ddl, *, announced: bool = True) -> ChangePolicy:
    """Without `announced` sinks keep the tables that they have, whatever else the document says."""
    rules = tuple(ChangeRule(TableNames(each.tables), frozenset(each.kinds), each.action) for each in ddl.policies)
    if not announced:
        rules = (ChangeRule(TableNames(()), frozenset(), "ignore"),)
    return ChangePolicy(
        rules, ddl.gate, frozenset(ddl.auto_approve), ddl.on_reject == "ignore", ddl.flush_timeout_seconds,
        ddl.gate_timeout_seconds,
    )  # fmt: skip


def sink_settings(pipeline: Pipeline, chosen: Collection[str]) -> list[tuple[str, dict[str, Any]]]:
    """Of the sinks of a group, as workers build them. What the document says for all of them counts where a sink says
    nothing itself."""
    found = []
    for sink in pipeline.spec.sinks:
        if sink.config.id not in chosen:
            continue
        settings, option = reveal(sink.config), "allow_destructive_ddl"
        allowed = pipeline.spec.ddl.allow_destructive_ddl
        if allowed is not None and option in settings and option not in sink.config.model_fields_set:
            settings[option] = allowed
        found.append((sink.type, settings))
    return found


def barrier_of(
    pipeline: Pipeline, group: SinkGroup, store: SchemaChangeStore, on_wait: Callable[[StoredChange | None], None]
) -> Callable[[threading.Event], SchemaBarrier]:
    settings = BarrierSettings(
        pipeline.name, pipeline.source_id, group.key, sink_settings(pipeline, group.sinks),
        replace(
            policy_of_changes(pipeline.spec.ddl, announced=pipeline.spec.source.config.announces_changes),
            flush_seconds=pipeline.spec.flush_seconds,
        ),
        processed=bool(pipeline.spec.processors),
    )  # fmt: skip
    return lambda stopping: SchemaBarrier(store, LogReader(pipeline.log_uri), settings, stopping, on_wait)


def views_of(pipeline: Pipeline, sink: str) -> dict[str, list[Any]]:
    """What a sink sees of tables that it does not see whole, or processors before it, for who delivers beside its
    stream: they come before the processors."""
    state = find_store(pipeline.state_uri)
    if state is None:
        return {}
    with closing(state):
        group = policy_of(pipeline).group_of(sink)
        kept = state.schema_changes.structures(pipeline.name, group.key)
    views = {name: document["views"] for name, document in kept.items()}
    if pipeline.spec.processors:
        return share_views({each: {name: mine[each] for name, mine in views.items() if each in mine}
                            for each in {each for mine in views.values() for each in mine}})  # fmt: skip
    return {name: mine[sink] for name, mine in views.items() if mine.get(sink)}


def quarantines_of(pipeline: Pipeline) -> list[Quarantine]:
    """Tables whose rows wait, or waited, for who reads the log beside the stream."""
    state = find_store(pipeline.state_uri)
    if state is None:
        return []
    with closing(state):
        return state.schema_changes.quarantines(pipeline.name)


WAITING_NOTICE = "ddl-waiting"


def waiting_notice(change: StoredChange) -> dict[str, str]:
    """With the plan of each sink."""
    plans = (
        f"{sink}: {'; '.join(each.statements) or each.error or 'nothing to do'}"
        for sink, each in sorted(change.outcomes.items())
    )
    return {
        "code": WAITING_NOTICE, "subject": change.table,
        "what": f"schema change {change.number} waits for approval ({', '.join(change.kinds)}). {' · '.join(plans)}",
        "fix": f"tidemill ddl show FILE {change.number}, then tidemill ddl approve or tidemill ddl reject.",
    }  # fmt: skip
