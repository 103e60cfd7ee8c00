"""A pipeline whose streams and capture are scripted: real ledger, log and checkpoints, no Spark, no database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.config.conftest import PIPELINE
from tests.support.blocks import make_change
from tidemill import config
from tidemill.errors import CheckpointConflict, PositionLost, Refused, TidemillError
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.delivery import Checkpoint, Receipt
from tidemill.service.run import pipeline_run
from tidemill.service.run.pipeline_run import PipelineRun
from tidemill.stream.position.commit_policy import SinkGroup
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.report import BatchReport
from tidemill.telemetry.metrics import Metrics

UP, DOWN, REFUSES = "up", "down", "refuses"
Outlook = dict[str, str]
"""What each sink does: `up`, `down` (fails, worth a retry), `refuses`."""


class ScriptedStream:
    """A stream whose every look at `running` is a batch: delivered, tried in vain, or refused, as its sinks are."""

    outlook: ClassVar[Outlook] = {}
    follows: ClassVar[bool] = False
    said: ClassVar[str] = ""
    lanes_stand: ClassVar[bool] = True

    def __init__(
        self, group: SinkGroup, ledger: Ledger, source_id: str, log_uri: str,
        sinks: Sequence[tuple[str, dict[str, Any]]], *, on_batch: Callable[[BatchReport], None],
        on_retry: Callable[[Mapping[str, str]], None], **settings: Any,
    ) -> None:  # fmt: skip
        assert [settings["id"] for _, settings in sinks] == list(group.sinks)
        self._group, self._ledger, self._log = group, ledger, LogReader(log_uri)
        self._on_batch, self._on_retry = on_batch, on_retry
        type(self).follows = settings["follower"] is not None
        self._error: TidemillError | None = None

    def start(self) -> None:
        self.checkpoint: Checkpoint = self._ledger.begin(self._group)

    @property
    def running(self) -> bool:
        states = {sink: self.outlook[sink] for sink in self._group.sinks}
        tail = self._log.tail()
        if self.checkpoint.offset == tail.offset:
            return True
        if "refuses" in states.values():
            self._error = Refused("never", fix="Mend it.")
            return False
        if "conflict" in states.values():
            self._error = CheckpointConflict("two of us")
            return False
        if "down" in states.values():
            self._on_retry({sink: "is down" for sink, state in states.items() if state == "down"})
            return True
        start, self.checkpoint = self.checkpoint.offset, self._ledger.advance(self._group, tail.offset, tail.position)
        events = tail.offset - start
        receipts = tuple(Receipt(sink, 0, events=events, notices=self.said) for sink in self._group.sinks)
        self._on_batch(BatchReport(0, start, tail.offset, tail.position, 1, 0.1, 0, receipts, group=self._group.key))
        return True

    def await_end(self, timeout: float) -> bool:
        assert self._error is not None
        raise self._error

    def ask_to_stop(self) -> None:
        pass

    def stop(self, timeout: float) -> None:
        pass


class NoCapture:
    restarts = 0
    trial = False

    def __init__(self, pipeline: config.Pipeline, said: Path | None = None, *given: object) -> None:
        pass

    def watch(self) -> None:
        return None

    def stop(self) -> None:
        pass


class Works:
    """A pipeline with the sinks a (required), b and c (optional), and ten events in its log."""

    def __init__(self, directory: Path, policy: str) -> None:
        path = directory / "orders.yaml"
        base = PIPELINE.replace(
            "    - {type: bucket, config: {id: b}}\n",
            "    - {type: bucket, config: {id: a}}\n"
            "    - {type: bucket, config: {id: b, required: false}}\n"
            "    - {type: bucket, config: {id: c, required: false}}\n",
        )
        path.write_text(f"{base}  commit_policy: {policy}\n  state_dir: {directory}/state\n")
        (self.pipeline,) = config.load(path)
        self.log = LogWriter.open(self.pipeline.log_uri, LogConfig.model_validate({"fsync": False}))
        self.number, self.metrics = 0, Metrics()
        self.write()

    def write(self) -> None:
        self.number += 1
        self.log.append(make_change(10, number=self.number))

    def run(self, monkeypatch: pytest.MonkeyPatch, **outlook: str) -> PipelineRun:
        monkeypatch.setattr(pipeline_run, "StreamLoop", ScriptedStream)
        monkeypatch.setattr(pipeline_run, "CaptureProcess", NoCapture)
        monkeypatch.setattr(ScriptedStream, "outlook", outlook)
        run = PipelineRun(self.pipeline, None, metrics=self.metrics)
        run.start_stream()
        for _ in range(3):
            run.watch()
        return run

    def checkpoint(self) -> int | None:
        kept = self.pipeline.build_checkpoints().load(self.pipeline.name)
        return kept.offset if kept else None


class FailedCapture(NoCapture):
    """Gave up for good."""

    stops = 0

    def watch(self) -> None:
        raise PositionLost('replication slot "orders" is gone', where="source", fix="Run tidemill recover.")

    def stop(self) -> None:
        type(self).stops += 1
