from __future__ import annotations

import os
import time
from typing import Any

from tidemill.formats.json import JsonFormat
from tidemill.lab.bench.baselines.baseline import Baseline


class FilesBaseline(Baseline):
    loop = "write() and fsync() of ready lines to one file"

    def start(self) -> None:
        self._pieces = [JsonFormat().batch(block, "bench") for block in self.material.blocks()]

    def config(self, target: str) -> dict[str, Any]:
        return {"path": str(self.scratch / target)}

    def plain(self, target: str) -> float:
        began = time.perf_counter()
        with (self.scratch / target).open("wb") as file:
            for piece in self._pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - began
