"""Events that a sink will never take, as `tidemill dlq` shows, replays and purges them."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Path, Query, Request, Response

from tidemill.api.access import ByOperator, Control, Name, Operator, Viewer
from tidemill.api.pages import link_next
from tidemill.api.shapes import ChosenRecords, DeadLetterShape, DeadLettersShape, PurgeShape, ReplayShape
from tidemill.errors import ConfigError
from tidemill.service.redelivery import dead_letters

router = APIRouter(tags=["dead letters"])


@router.get("/pipelines/{name}/dead-letters", summary="Events that a sink will never take")
def list_dead_letters(
    _: Viewer,
    control: Control,
    name: Name,
    request: Request,
    response: Response,
    sink: Annotated[
        str | None, Query(max_length=200, description="Only those of this sink.", examples=["lake"])
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 100,
    after: Annotated[
        str | None,
        Query(pattern=r"^[0-9]{1,18}:[0-9]{1,18}$", description="Those after this offset and id.", examples=["1200:1"]),
    ] = None,
) -> DeadLettersShape:
    """By offset, the oldest event first, without their values. If there are more, the header `Link` has the address of
    the next page."""
    offset, _separator, number = (after or "").partition(":")
    place = (int(offset), int(number)) if after else None
    listing = dead_letters.list_records(control.pipeline(name), sink, limit + 1, after=place)
    found = listing.records[:limit]
    if len(listing.records) > limit:
        link_next(request, response, after=f"{found[-1].offset}:{found[-1].number}")
    return DeadLettersShape(count=listing.counts, dead_letters=[_record(each) for each in found])


@router.get("/pipelines/{name}/dead-letters/{number}", summary="One dead letter with its event")
def show_dead_letter(
    _: Operator,
    control: Control,
    name: Name,
    number: Annotated[int, Path(ge=1, le=2**63 - 1, description="Its id in the list.", examples=[1])],
) -> DeadLetterShape:
    """The event's values are in it."""
    record, event = dead_letters.read_record(control.pipeline(name), number)
    return _record(record, orjson.loads(event))


@router.post("/pipelines/{name}/dead-letters/replay", summary="Deliver dead letters again")
def replay_dead_letters(control: Control, cause: ByOperator, name: Name, which: ChosenRecords) -> ReplayShape:
    """By offset; those that arrive are removed. The pipeline must be stopped."""
    pipeline = control.pipeline(name)
    intended = dead_letters.plan_replay(pipeline, _ids(which), which.sink, superseded=which.superseded)
    control.audit(cause, "replay dead letters", name, intended.consequence)
    outcomes = dead_letters.replay(pipeline, intended)
    failed = sum(bool(each.error) for each in outcomes)
    skipped = sum(bool(each.skipped) for each in outcomes)
    return ReplayShape(
        replayed=len(outcomes) - failed - skipped, failed=failed, skipped=skipped,
        untried=len(intended.records) - len(outcomes),
    )  # fmt: skip


@router.post("/pipelines/{name}/dead-letters/purge", summary="Let dead letters go")
def purge_dead_letters(control: Control, cause: ByOperator, name: Name, which: ChosenRecords) -> PurgeShape:
    """For ever: their sink never gets these events."""
    pipeline = control.pipeline(name)
    intended = dead_letters.plan_purge(pipeline, _ids(which), which.sink, superseded=which.superseded)
    control.audit(cause, "purge dead letters", name, intended.consequence)
    return PurgeShape(purged=dead_letters.purge(pipeline, intended))


def _record(record: dead_letters.DeadLetterRecord, event: Any = None) -> DeadLetterShape:
    return DeadLetterShape(
        id=record.number, sink=record.sink, offset=record.offset, table=record.table, op=record.op,
        reason=record.reason, attempts=record.attempts, first_at=record.first_at, superseded=record.superseded,
        event=event,
    )  # fmt: skip


def _ids(which: ChosenRecords) -> list[int]:
    if not which.ids and which.sink is None and not which.all:
        raise ConfigError(
            "it is not said which dead letters", where="ids", fix="Give ids, a sink, or `all: true`. Nothing was done."
        )
    return which.ids
