"""Who changes something of a pipeline, and why: for its record and for the audit trail."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """Who asked for a change of state, and why."""

    actor: str
    reason: str = ""


def current_actor() -> str:
    """Who changes a pipeline's state where nobody else is named: the user of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"
