"""What `run` shows as notices, for `doctor`: it was said by sinks, sensing, scans of the catalog and the gate while the
pipeline ran, and stands until somebody has looked at it. Nothing is asked anew: a stopped pipeline has them too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tidemill.capture.status import read_status
from tidemill.config import Pipeline
from tidemill.contracts import Check, Outcome
from tidemill.contracts.schema_change_store import ChangeStatus
from tidemill.errors import TidemillError
from tidemill.service.run.notices import SinkNotices
from tidemill.service.schema.barriers import waiting_notice
from tidemill.service.schema.changes import list_changes
from tidemill.service.schema.sensing import drift_notices, drifts

_WAITING = (ChangeStatus.PENDING, ChangeStatus.QUARANTINED)


def check_notices(subject: Pipeline, told: Collection[str]) -> Iterator[Check]:
    """`told` are details of the checks before: what the source has found again by itself is not said twice."""
    for notice in (*_captured(subject), *SinkNotices(subject.state_path / "notices.json").standing()):
        if notice["what"] not in told:
            yield _to_check(notice)
    try:
        waiting = [each for each in list_changes(subject, 1000) if each.status in _WAITING]
        drifted = drifts(subject) if subject.spec.schema_sensing.enabled else []
    except TidemillError:
        return  # the check of the state store says why it cannot be read
    yield from map(_to_check, (*map(waiting_notice, waiting), *drift_notices(drifted)))


def _captured(subject: Pipeline) -> tuple[Mapping[str, str], ...]:
    status = read_status(subject.state_path)
    return status.notices if status is not None else ()


def _to_check(notice: Mapping[str, str]) -> Check:
    return Check(f"{notice['code']} {notice['subject']}", Outcome.WARN, notice["what"], notice["fix"])
