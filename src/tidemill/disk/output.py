"""Lines that stay whole where several processes print to the same place."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator


@contextlib.contextmanager
def lock_output(fd: int) -> Iterator[None]:
    """Keeps lines whole among all that print to the same place: lanes, and the process that shows the status."""
    with contextlib.suppress(OSError):  # not everything that can be written can be locked
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


def discard_output(file: int) -> None:
    """What is written to the file from now on goes nowhere: its reader has gone away."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file)
    os.close(nowhere)
