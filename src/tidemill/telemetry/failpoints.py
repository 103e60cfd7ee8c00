"""Named points in the two loops at which a crash test ends the process, as `kill -9` would, or freezes it.

`TIDEMILL_CRASH_AT=capture.appended:3` kills at the third passage; several points are told apart by commas. Without the
variable a point costs one dictionary look-up. With `TIDEMILL_CRASH_ONCE=<path>` the crash happens only if the file
`<path>-capture.appended` does not exist yet, and it is made first: a restarted process with the same environment lives,
until it comes to another point.

`TIDEMILL_FREEZE_AT=stream.delivered=<path>` stops the process (SIGSTOP) at a passage once the file is there, which is
renamed to `<path>-frozen` first: who looks for it knows where the process stands.
"""

from __future__ import annotations

import os
import signal

_PLAN: dict[str, int] = {}
for _entry in filter(None, os.environ.get("TIDEMILL_CRASH_AT", "").split(",")):
    _name, _, _count = _entry.partition(":")
    _PLAN[_name] = int(_count or 1)
_FREEZES, _, _FREEZE_FILE = os.environ.get("TIDEMILL_FREEZE_AT", "").partition("=")


def failpoint(name: str) -> None:
    """Passes, unless this passage was chosen as the end, or as a rest."""
    left = _PLAN.get(name)
    if name == _FREEZES and os.path.exists(_FREEZE_FILE):
        os.rename(_FREEZE_FILE, f"{_FREEZE_FILE}-frozen")
        os.kill(os.getpid(), signal.SIGSTOP)
    if left is None:
        return
    _PLAN[name] = left - 1
    if left == 1 and _first_time(name):
        os.kill(os.getpid(), signal.SIGKILL)


def _first_time(name: str) -> bool:
    marker = os.environ.get("TIDEMILL_CRASH_ONCE")
    if not marker:
        return True
    try:
        os.close(os.open(f"{marker}-{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
