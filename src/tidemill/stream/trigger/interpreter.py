"""How long a thread of the driver keeps the interpreter from those that wait for it.

A feeder gives the interpreter up at every write to a lane, and waits for it again while other threads show and count:
half a millisecond is a tenth of what Python lets them have. But each thread that waits wakes up that often to ask for
it, and where many pipelines run in one process hundreds wait at a time, when it had no CPU for a moment. So the feeders
of a process share one rate, beyond Python's own: a thousand threads that wake up seven times a second and have work for
half of a core stood still for 0.8 to 5.5 seconds with 5 ms, for 0.1 to 0.3 with 50 (ADR 78).
"""

from __future__ import annotations

import sys
import threading

FEEDER = "real-time"
"""What the thread of each feeder is called: by that they are counted."""

_SECONDS, _MOST_SECONDS = 0.0005, 0.05  # Python's own is 0.005


def share_interpreter() -> None:
    """Called whenever a feeder has begun or ended."""
    feeders = sum(thread.name == FEEDER for thread in threading.enumerate())
    sys.setswitchinterval(min(_MOST_SECONDS, _SECONDS * max(1, feeders)))
