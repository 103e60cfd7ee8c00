"""Runs that end by themselves: which pipelines can say when they have delivered what was there, and which did not
deliver it."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.config import Pipeline
from tidemill.contracts import SnapshotSource
from tidemill.errors import ConfigError, DeliveryError, TidemillError
from tidemill.service.run.status import PipelineStatus, State


def check_ends(pipelines: Sequence[Pipeline], *, once: bool = False) -> None:
    """`ConfigError` for a source that does not know where it ends, of a pipeline whose runs end: because of its
    document, or because this one is to be run `once`."""
    for pipeline in pipelines:
        spec = pipeline.spec
        if spec.schedule is not None:
            field, fix = ": spec.schedule", "Leave `schedule` out: the pipeline runs all the time then."
        elif spec.trigger.once:
            field, fix = ": spec.trigger", "Leave `mode` out, and stop it when it has caught up."
        elif once:
            field, fix = "", "Run it without --once, and stop it when it has caught up."
        else:
            continue
        if not isinstance(pipeline.build_source(), SnapshotSource):
            raise ConfigError(
                f'a source of type "{spec.source.type}" cannot say where it ends now, as a run that ends must',
                where=f"{pipeline.file}{field}",
                fix=fix,
            )


def refuse_schedules(pipelines: Sequence[Pipeline]) -> None:
    """`ConfigError` for who would run them all the time."""
    for pipeline in pipelines:
        if pipeline.spec.schedule is not None:
            raise ConfigError(
                f'pipeline "{pipeline.name}" runs by a schedule, which only a server keeps',
                where=f"{pipeline.file}: spec.schedule",
                fix="Use `tidemill serve --config FILE`; or `tidemill run --once FILE`, for one run now.",
            )


def find_undelivered(statuses: Sequence[PipelineStatus]) -> list[TidemillError]:
    """Of pipelines that ended without a failure of their own: what their sinks did not take, or what they were stopped
    before."""
    found: list[TidemillError] = []
    for status in statuses:
        if status.state is State.FAILED or (status.caught_up and not status.lag_events):
            continue
        errors = "; ".join(f"{sink.id}: {sink.error}" for sink in status.sinks if sink.error)
        what = f"{status.lag_events} events are captured and not delivered" if status.caught_up else "it was stopped"
        found.append(
            DeliveryError(
                f"pipeline {status.name} did not deliver all that was there: {what}",
                where=errors,
                fix="Nothing is lost: run it again, and it goes on where it was.",
            )
        )
    return found
