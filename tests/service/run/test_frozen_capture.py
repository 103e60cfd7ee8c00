"""A capture process that is frozen, as its supervisor sees it: no dead capture says that all is well."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.crash.actors import wait_for
from tidemill import config
from tidemill.contracts.lease import lease_clock
from tidemill.service.run import capture_process
from tidemill.service.run.capture_process import CaptureProcess

DOCUMENT = """
metadata: {name: orders}
spec:
  state_dir: HERE/state
  source: {type: sqlite, config: {id: pond, path: HERE/pond.sqlite, tables: [orders]}}
  sinks: [{type: blackhole, config: {id: none}}]
"""


def test_a_frozen_capture_process_is_killed_and_another_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = sqlite3.connect(tmp_path / "pond.sqlite", isolation_level=None)
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    file = tmp_path / "orders.yaml"
    file.write_text(DOCUMENT.replace("HERE", str(tmp_path)))
    (pipeline,) = config.load(file)
    lease: Any = SimpleNamespace(until=lease_clock() + 3600, predecessor=None, on_renewed=None)
    process = CaptureProcess(pipeline, tmp_path / "said", lease)
    said: list[str] = []

    def look() -> bool:
        """As its supervisor and its lease do, again and again. Whether it streams."""
        if not said:
            lease.on_renewed(lease.until)
        status = process.watch()
        if status is not None and status.error:
            said.append(str(status.error["what"]))
            assert status.lag_bytes is None, "nobody knows"
        return status is not None and bool(status.streaming_since)

    process.start()
    try:
        wait_for(look, 60, "it does not stream")
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        monkeypatch.setattr(capture_process, "FROZEN_SECONDS", 1.0)
        wait_for(lambda: look() and process.pid != first, 60, "nothing takes its place")
        assert said[0] == "the capture process does not answer, and was killed"
        assert process.restarts == 1
    finally:
        process.stop()
        database.close()
