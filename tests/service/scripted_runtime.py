"""A runtime whose capture processes and streams are scripted, for tests that need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.config.conftest import PIPELINE
from tests.support.blocks import make_change
from tests.support.scripted import NoCapture, ScriptedStream
from tests.support.session_standin import NO_SPARK
from tidemill import config
from tidemill.errors import (
    AlreadyRunning,
)
from tidemill.log import LogConfig, LogWriter
from tidemill.service.run.ownership import lock_pipeline
from tidemill.service.run.status import State
from tidemill.service.runtime import Runtime

CAPTURES = "{capture: true}"
"""A `pause` that goes on capturing."""


class ScriptedRuntime:
    """A runtime whose capture processes and streams are scripted; its pipelines have ten events each in their logs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runtime = Runtime(spark=NO_SPARK)

    def pipeline(self, name: str, pause: str = "{}") -> config.Pipeline:
        path = self.directory / f"{name}.yaml"
        document = PIPELINE.replace("name: orders", f"name: {name}").replace("{id: b}", f"{{id: {name}}}")
        path.write_text(f"{document}  state_dir: {self.directory}/state\n  pause: {pause}\n")
        (pipeline,) = config.load(path)
        self.capture(pipeline, 1)
        return pipeline

    def capture(self, pipeline: config.Pipeline, number: int) -> None:
        """Ten events more."""
        log = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({"fsync": False}))
        log.append(make_change(10, number=number))
        log.close()

    def add(self, name: str, does: str = "up", *, pause: str = "{}") -> str:
        ScriptedStream.outlook[name] = does
        return self.runtime.add(self.pipeline(name, pause))

    def state(self, name: str) -> State:
        return self.runtime.status(name).state

    def delivered(self, name: str) -> bool:
        return self.runtime.status(name).events == 10


class ScriptedCapture(NoCapture):
    calls: ClassVar[list[str]] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


def is_free(pipeline: config.Pipeline) -> bool:
    try:
        with lock_pipeline(pipeline):
            return True
    except AlreadyRunning:
        return False
