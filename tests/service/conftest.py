"""Runtimes for tests of the service: scripted, and on a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.scripted_runtime import ScriptedCapture, ScriptedRuntime
from tests.support.components import register
from tests.support.scripted import ScriptedStream
from tidemill.service.run import pipeline_run


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRuntime]:
    register(monkeypatch)
    monkeypatch.setattr(pipeline_run, "StreamLoop", ScriptedStream)
    monkeypatch.setattr(pipeline_run, "CaptureProcess", ScriptedCapture)
    monkeypatch.setattr(ScriptedStream, "outlook", {})
    monkeypatch.setattr(ScriptedCapture, "calls", [])
    scripted = ScriptedRuntime(tmp_path)
    yield scripted
    scripted.runtime.close()
