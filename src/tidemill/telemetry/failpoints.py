"""Named points in the two loops at which a crash test ends the process, as `kill -9` would.

`TIDEMILL_CRASH_AT=capture.appended:3` kills at the third passage. Without the variable a point costs one dictionary
look-up. With `TIDEMILL_CRASH_ONCE=<file>` the crash happens only if that file does not exist yet, and it is made
first: a restarted process with the same environment lives.
"""

from __future__ import annotations

import os
import signal

_PLAN: dict[str, int] = {}
for _entry in filter(None, os.environ.get("TIDEMILL_CRASH_AT", "").split(",")):
    _name, _, _count = _entry.partition(":")
    _PLAN[_name] = int(_count or 1)


def failpoint(name: str) -> None:
    """Passes, unless this passage was chosen as the end."""
    left = _PLAN.get(name)
    if left is None:
        return
    _PLAN[name] = left - 1
    if left == 1 and _first_time():
        os.kill(os.getpid(), signal.SIGKILL)


def _first_time() -> bool:
    marker = os.environ.get("TIDEMILL_CRASH_ONCE")
    if not marker:
        return True
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
