"""Reads the files of a server or a worker again, because somebody asked for it, or one has changed."""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.service.cause import Cause, current_actor
from tidemill.service.server.control import ControlPlane
from tidemill.telemetry import events


def reload_files(control: ControlPlane, reason: str) -> bool:
    """A mistake in a file changes nothing and stands in the log: False then."""
    try:
        done = control.reload(Cause(current_actor(), reason))
    except TidemillError as error:
        events.fail("server.reload_refused", code=error.code, error=error.what, where=error.where, fix=error.fix)
        return False
    events.emit("server.reloaded", added=len(done.added), changed=len(done.changed), removed=len(done.removed))
    return True
