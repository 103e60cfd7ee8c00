"""Takes out of a source's database what capture made there, for a pipeline that will not run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from tidemill.config import Pipeline
from tidemill.contracts import Removable, Triggered
from tidemill.errors import ConfigError
from tidemill.service.run.ownership import lock_pipeline


def remove(pipeline: Pipeline, confirm: Callable[[str], None]) -> list[str]:
    """What was dropped. `confirm` is called with what follows before anything is changed, and raises to leave
    everything as it is. `AlreadyRunning` if the pipeline runs, `ConfigError` if its source makes nothing."""
    with closing(pipeline.build_source()) as source:
        if not isinstance(source, Removable):
            raise ConfigError(
                "this source has nothing that could be removed by us", where=f"pipeline {pipeline.name}",
                fix="What is left in the database is dropped there: the slot and the publication of PostgreSQL.",
            )  # fmt: skip
        with lock_pipeline(pipeline):
            confirm(
                f"{pipeline.name} will lose its position: changes that it has not captured yet are gone, and a later"
                " run needs `tidemill recover`"
            )
            return source.uninstall()


def trigger_script(pipeline: Pipeline) -> str:
    """The SQL that lets the database tell changes of its tables, for who may run it."""
    with _open_triggered(pipeline) as source:
        return source.trigger_script()


def remove_triggers(pipeline: Pipeline, confirm: Callable[[str], None]) -> list[str]:
    """What was dropped; the pipeline may run meanwhile. `confirm` as above."""
    with _open_triggered(pipeline) as source:
        confirm(
            "every pipeline on this database will know changes of tables only from what the stream announces; one with"
            " ddl.capture: trigger makes the triggers again at its next start"
        )
        return source.remove_triggers()


@contextmanager
def _open_triggered(pipeline: Pipeline) -> Iterator[Triggered]:
    with closing(pipeline.build_source()) as source:
        if not isinstance(source, Triggered):
            raise ConfigError(
                "only PostgreSQL has event triggers", where=f"pipeline {pipeline.name}",
                fix="The other sources capture statements without.",
            )  # fmt: skip
        yield source
