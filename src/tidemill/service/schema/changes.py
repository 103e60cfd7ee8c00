"""Schema changes of a pipeline as an operator sees and decides them, while it runs or is stopped.

A decision is a row in the state store: a stream that waits at the change sees it within a second, one that is stopped
at its next start. It is taken once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from tidemill.config import Pipeline
from tidemill.contracts import StateStore
from tidemill.contracts.installation import AuditEntry
from tidemill.contracts.schema_change_store import Decision, SinkOutcome, StoredChange
from tidemill.errors import ConfigError, LifecycleError
from tidemill.log.reader import LogReader
from tidemill.model.clock import utc_now
from tidemill.model.position import Offset
from tidemill.model.table import Table
from tidemill.schema.ddl_document import changes_between, structure_of
from tidemill.schema.view import NEVER_IGNORED
from tidemill.service.cause import Cause
from tidemill.service.position.positions import sink_positions
from tidemill.service.schema.barriers import barrier_of
from tidemill.state import find_store, is_same_store
from tidemill.state.installation import InstallationStore
from tidemill.stream.position.commit_policy import policy_of

_ACTIONS = {
    Decision.APPROVED: "approve schema change", Decision.REJECTED: "reject schema change",
    Decision.MADE: "apply schema change",
}  # fmt: skip
"""As the audit trail has them."""


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change that is in the log and not at the sinks yet. `action` is what the policies say: evolve, try_evolve,
    ignore, quarantine, halt, or ask where the gate is closed."""

    offset: Offset
    table: str
    kinds: tuple[str, ...]
    text: str
    action: str
    plans: dict[str, SinkOutcome]


def list_changes(pipeline: Pipeline, limit: int = 100, *, before: int | None = None) -> list[StoredChange]:
    """Newest first; only those whose number is below `before`. None where nothing has run yet."""
    state = find_store(pipeline.state_uri)
    if state is None:
        return []
    with closing(state):
        return state.schema_changes.changes(pipeline.name, limit, before=before)


def show_change(pipeline: Pipeline, number: int) -> StoredChange:
    with _open_state(pipeline) as state:
        found = state.schema_changes.change(pipeline.name, number)
        if found is None:
            raise _unknown(pipeline, state, number)
        return found


def plan_changes(pipeline: Pipeline) -> list[PlannedChange]:
    """What every sink would do about the changes that wait in the log for it, as its destination is now. Connects to
    the sinks and changes nothing."""
    found: dict[tuple[Offset, str], PlannedChange] = {}
    log = LogReader(pipeline.log_uri)
    head, tail = log.head(), log.tail().offset
    at = {each.sink: each.checkpoint.offset if each.checkpoint else 0 for each in sink_positions(pipeline)}
    with closing(pipeline.build_state()) as state:
        for group in policy_of(pipeline).groups:
            barrier = barrier_of(pipeline, group, state.schema_changes, lambda change: None)(threading.Event())
            start = max(head, min(at[sink] for sink in group.sinks))
            for each in barrier.preview(start, tail) if start < tail else ():
                key = each.change.offset, each.change.table.full_name
                known = found.get(key)
                found[key] = PlannedChange(
                    *key, tuple(sorted(map(str, each.change.kinds))), each.change.text,
                    each.verdict.action, {**(known.plans if known else {}), **each.plans},
                )  # fmt: skip
    return [found[key] for key in sorted(found)]


def decide(
    pipeline: Pipeline, number: int, decision: Decision, cause: Cause, trail: InstallationStore | None = None
) -> StoredChange:
    """`LifecycleError` if it was decided before: the first decision stays. `ConfigError` if there is no such change, or
    no reason where the document asks for one. The decision and its entry in the audit trail of the pipeline's store are
    one transaction. `trail` is a server's: where that is another store, the entry is there too."""
    if pipeline.spec.ddl.approvers_note == "required" and not cause.reason.strip():
        raise ConfigError(
            "a decision on a schema change needs a reason here", where=pipeline.file,
            fix="Say why: --reason TEXT; ddl.approvers_note is required.",
        )  # fmt: skip
    with _open_state(pipeline) as state:
        before = state.schema_changes.change(pipeline.name, number)
        if before is None:
            raise _unknown(pipeline, state, number)
        if decision is Decision.REJECTED and before.decision is Decision.PENDING:
            _check_that_it_can_be_ignored(pipeline, before)
        at = utc_now()
        detail = f"{number} of {before.table}: {cause.reason}"
        entry = AuditEntry(at, cause.actor, _ACTIONS[decision], pipeline.name, detail)
        found = state.schema_changes.decide(pipeline.name, number, decision, cause.actor, cause.reason, at, entry)
    if before.decision is not Decision.PENDING or (found.decision, found.actor, found.decided_at) != (
        decision, cause.actor, at,
    ):  # fmt: skip
        raise LifecycleError(
            f"schema change {number} of {found.table} is {found.status} already",
            where=f"pipeline {pipeline.name}, decided by {found.actor} at {found.decided_at}",
            fix="A decision is taken once. `tidemill ddl show` has the reason.",
        )
    if trail is not None and not is_same_store(trail.uri, pipeline.state_uri):
        trail.audit(entry)
    return found


def describe_change(change: StoredChange, *, whole: bool = False) -> dict[str, Any]:
    """As `--json` and the API have it; `whole` with what differs, and what the sinks do."""
    shown: dict[str, Any] = {
        "number": change.number, "status": str(change.status), "table": change.table, "kinds": list(change.kinds),
        "offset": change.offset, "position": str(change.position), "seen_at": change.seen_at,
        "decision": str(change.decision), "decided_by": change.actor, "decided_at": change.decided_at,
        "reason": change.reason, "text": change.text,
    }  # fmt: skip
    if whole:
        before, after = (Table.from_json(each) if each else None for each in (change.before, change.after))
        shown["changes"] = changes_between(before, after) if after is not None else []
        shown["before"], shown["after"] = structure_of(before), structure_of(after)
        shown["sinks"] = [describe_outcome(sink, outcome) for sink, outcome in sorted(change.outcomes.items())]
    return shown


def describe_outcome(sink: str, outcome: SinkOutcome) -> dict[str, Any]:
    return {
        "sink": sink, "statements": list(outcome.statements), "status": outcome.status, "error": outcome.error,
        "at": outcome.at,
    }  # fmt: skip


@contextmanager
def _open_state(pipeline: Pipeline) -> Iterator[StateStore]:
    state = find_store(pipeline.state_uri)
    if state is None:
        raise ConfigError("no schema change came yet: there is no state store", where=pipeline.file, fix="Run it.")
    with closing(state):
        yield state


def _check_that_it_can_be_ignored(pipeline: Pipeline, change: StoredChange) -> None:
    """Where it cannot, `ConfigError`: once it is rejected, rows can only go on without the change."""
    never = sorted(NEVER_IGNORED & set(change.kinds))
    if never:
        raise ConfigError(
            f"schema change {change.number} of {change.table} cannot be rejected: rows after it would go on"
            f" without it, and {never[0].replace('_', ' ')} cannot be left out",
            where=f"pipeline {pipeline.name}",
            fix="tidemill ddl approve makes it; tidemill ddl apply says that you made it yourself. Until then nothing"
            " after it is delivered.",
        )


def _unknown(pipeline: Pipeline, state: StateStore, number: int) -> ConfigError:
    numbers = [str(each.number) for each in state.schema_changes.changes(pipeline.name, 10)]
    return ConfigError(
        f"there is no schema change {number}", where=f"pipeline {pipeline.name}",
        fix=f"There are: {', '.join(reversed(numbers)) or 'none yet'}.",
    )  # fmt: skip
