"""How long a thread of the driver keeps the interpreter from those that wait for it.

A feeder gives the interpreter up at every write to a lane, and waits for it again while other threads show and count:
half a millisecond is a tenth of what Python lets them have. But each thread that waits wakes up that often to ask for
it, and where many pipelines run in one process hundreds wait at a time. So the feeders of a process share one rate.
"""

from __future__ import annotations

import sys
import threading

FEEDER = "real-time"
"""What the thread of each feeder is called: by that they are counted."""

_SECONDS, _MOST_SECONDS = 0.0005, 0.005  # the latter is Python's own


def share_interpreter() -> None:
    """Called whenever a feeder has begun or ended."""
    feeders = sum(thread.name == FEEDER for thread in threading.enumerate())
    sys.setswitchinterval(min(_MOST_SECONDS, _SECONDS * max(1, feeders)))
