"""Makes a state directory that was copied or restored the pipeline's own (ownership.py)."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.config import Pipeline
from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.service.run.ownership import lock_pipeline


def adopt(pipeline: Pipeline, confirm: Callable[[str], None]) -> None:
    """`confirm` is called with what follows before anything is changed, and raises to leave everything as it is.
    `AlreadyRunning` if the pipeline runs, `ConfigError` if there is nothing to adopt: nobody is asked then."""
    if not pipeline.state_path.is_dir():
        raise ConfigError(
            "there is no state directory to adopt", where=str(pipeline.state_path),
            fix="`tidemill run` makes a new one.",
        )  # fmt: skip
    try:
        with lock_pipeline(pipeline):
            pass
    except EnvironmentProblem:
        pass  # a copy: what this is for
    else:
        raise ConfigError(
            "this is no copy, so there is nothing to adopt", where=str(pipeline.state_path),
            fix=f"The pipeline runs from it as it is: tidemill run {pipeline.file}",
        )  # fmt: skip
    confirm(
        f"{pipeline.name} will run from {pipeline.state_path}: the directory that it was copied from must never run "
        "again. What was captured or delivered from there since the copy was made is captured or delivered again, "
        "and sinks may take new events for old ones"
    )
    with lock_pipeline(pipeline, adopt=True):
        pass
