"""Several sinks of a worker read the same log, each at its own pace and in a thread of its own."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocks import make_change
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.log import local as module


class Snatched(OrderedDict[str, Any]):
    """A map that another thread drops between the look at it and its use."""

    def get(self, name: str, default: Any = None) -> Any:
        return self.pop(name, default)


def test_a_file_that_another_thread_unmaps_can_still_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogWriter.open(str(tmp_path), LogConfig.model_validate({"fsync": False}))
    log.append(make_change(5))
    log.close()
    monkeypatch.setattr(module, "OrderedDict", Snatched)
    reader = LogReader(str(tmp_path))
    (ref,) = reader.refs(0, 5)
    assert [reader.read(ref).rows for _ in range(3)] == [5, 5, 5]
