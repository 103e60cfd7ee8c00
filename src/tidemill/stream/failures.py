"""What went wrong around a batch, in words for people: Spark's errors are long, and many say the same."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.errors import LogError, StreamError, TidemillError
from tidemill.model.position import Offset

# Which call and which task it was helps nobody.
_AROUND = re.compile(r"(An error occurred while calling \S+|: |.* most recent failure: Lost task .*?\): )+")


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def reason(error: BaseException) -> str:
    """Java's own words for what it was, and those of the last cause. Not a worker's traceback: it may hold a row's
    values."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [rest for line in lines if (rest := line[found.end() :] if (found := _AROUND.match(line)) else line)]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    first = said[0] if said else type(error).__name__
    return first[:300] + (f" ({causes[-1][:300]})" if causes and causes[-1].partition(": ")[2] not in first else "")


# A Python process that Java started and did not hear of: the machine is busy, or has no memory for it.
_NO_WORKER = "Python worker failed to connect back"


def job_failed(error: Exception, pipeline: str, checkpoint: Offset) -> StreamError:
    """Sinks' errors come as receipts; this is a worker that was killed, or an executor lost."""
    return StreamError(
        f"a Spark job failed: {reason(error)}",
        where=f'pipeline "{pipeline}", checkpoint {checkpoint}',
        fix="Nothing is lost: start the pipeline again. If it repeats, look at memory and Spark's log.",
    )


def not_started(error: Exception, directory: Path) -> StreamError:
    what = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
    return StreamError(
        f"the stream did not start: {what}",
        where=str(directory),
        fix="Check the directory's permissions and the free space; it is tried again.",
    )


def outside_a_batch(error: BaseException, pipeline: str) -> TidemillError:
    """What ended the query while no batch ran: mostly the log could not be read while planning."""
    if _NO_WORKER in str(error):
        return StreamError(
            "the stream did not start: its planning process did not come up within a minute",
            where=f'pipeline "{pipeline}"',
            fix="No sink is to blame, and it is tried again. If it repeats, the machine has too little CPU or memory.",
        )
    lines = [line.strip() for line in str(error).splitlines()]
    ours = next((line for line in reversed(lines) if line.startswith("tidemill.errors.")), "")
    what = ours.partition(": ")[2] or first_line(error)
    return LogError(
        f"planning a batch failed: {what}", where=f'pipeline "{pipeline}"', fix="Look at it: tidemill log stats FILE"
    )
