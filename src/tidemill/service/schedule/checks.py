"""Whether pipelines can do what their `schedule:` asks, beyond what the document itself says."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.config import Pipeline
from tidemill.contracts import SnapshotSource
from tidemill.errors import ConfigError


def check_schedules(pipelines: Sequence[Pipeline]) -> None:
    """`ConfigError` for a source that does not know where it ends."""
    for pipeline in pipelines:
        if pipeline.spec.schedule is not None and not isinstance(pipeline.build_source(), SnapshotSource):
            raise ConfigError(
                f'a source of type "{pipeline.spec.source.type}" cannot say where it ends now, as a run must',
                where=f"{pipeline.file}: spec.schedule",
                fix="Leave `schedule` out: the pipeline runs all the time then.",
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
