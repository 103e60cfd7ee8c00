"""What `run` shows as notices, for `doctor`: it was said by sinks, sensing, scans of the catalog and the gate while the
pipeline ran, and stands until somebody has looked at it. Nothing is asked anew: a stopped pipeline has them too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tidemill.capture.status import read_status
from tidemill.config import Pipeline
from tidemill.contracts import Check, Outcome
from tidemill.contracts.schema_change_store import ChangeStatus, StoredChange
from tidemill.errors import TidemillError
from tidemill.service.run.notices import SinkNotices
from tidemill.service.schema.barriers import waiting_notice
from tidemill.service.schema.changes import list_changes
from tidemill.service.schema.sensing import drift_notices, drifts

_WAITING = (ChangeStatus.PENDING, ChangeStatus.QUARANTINED)


def check_notices(subject: Pipeline, details: Collection[str]) -> Iterator[Check]:
    """`details` are those of the checks before: what the source has found again by itself is not said twice."""
    for notice in (*_capture_notices(subject), *SinkNotices(subject.state_path / "notices.json").standing()):
        if notice["what"] not in details:
            yield _to_check(notice)
    try:
        changes = list_changes(subject, 1000)
        drifted = drifts(subject) if subject.spec.schema_sensing.enabled else []
    except TidemillError:
        return  # the check of the state store says why it cannot be read
    waiting = (waiting_notice(each) for each in changes if each.status in _WAITING)
    failed = (_failed_notice(each) for each in changes if each.status is ChangeStatus.FAILED)
    yield from map(_to_check, (*failed, *waiting, *drift_notices(drifted)))


def _capture_notices(subject: Pipeline) -> tuple[Mapping[str, str], ...]:
    status = read_status(subject.state_path)
    return status.notices if status is not None else ()


def _failed_notice(change: StoredChange) -> dict[str, str]:
    """A pipeline that runs has it as its error."""
    said = (f"{sink}: {each.error}" for sink, each in sorted(change.outcomes.items()) if each.error)
    return {
        "code": "ddl-failed", "subject": change.table,
        "what": f"schema change {change.number} could not be made ({', '.join(change.kinds)}). {' · '.join(said)}",
        "fix": "Mend that at the destination and start the pipeline: it tries again. tidemill ddl show FILE"
        f" {change.number} has the statements.",
    }  # fmt: skip


def _to_check(notice: Mapping[str, str]) -> Check:
    return Check(f"{notice['code']} {notice['subject']}", Outcome.WARN, notice["what"], notice["fix"])
