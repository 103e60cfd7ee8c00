"""How many pipelines of a server get going at a time: a start takes seconds of a core, in several new processes.

Two hundred that were started at once waited for each other's processes until Spark gave them up, and began anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from tidemill.service.run.status import PipelineStatus, State

_LONGEST_SECONDS = 30.0  # a pipeline whose source does not answer holds up the others for no longer
_LOOK_SECONDS = 0.05


class StartPace:
    """Asked by who starts many, before each. One pipeline that an operator starts need not wait."""

    def __init__(self, statuses: Callable[[], Iterable[PipelineStatus]], *, at_once: int | None = None) -> None:
        self._statuses = statuses
        self._at_once = at_once or max(4, 2 * (os.cpu_count() or 1))
        self._began: dict[str, float] = {}

    def wait(self, name: str, stopping: Callable[[], bool]) -> None:
        """Until there is room for this one, or the server stops."""
        while len(self._under_way()) >= self._at_once and not stopping():
            time.sleep(_LOOK_SECONDS)
        self._began[name] = time.monotonic()

    def _under_way(self) -> dict[str, float]:
        since = time.monotonic() - _LONGEST_SECONDS
        going = {each.name for each in self._statuses() if each.state is not State.RUNNING or each.lanes_stand}
        recent = {name: began for name, began in list(self._began.items()) if began > since}
        self._began = {name: began for name, began in recent.items() if name not in going}
        return self._began
