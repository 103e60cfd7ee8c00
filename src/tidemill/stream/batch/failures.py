"""What went wrong around a batch, in words for people: Spark's errors are long, and many say the same."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from tidemill.errors import (
    DeliveryError,
    ErrorData,
    LogError,
    Refused,
    StreamError,
    TidemillError,
    from_data,
    is_retryable,
    to_data,
)
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


class Carried(Exception):
    """An error of ours on its way through Spark, which keeps of a Python error only the text: one line of JSON."""

    def __init__(self, error: TidemillError) -> None:
        super().__init__(_MARK + orjson.dumps(to_data(error)).decode())


_MARK = "tidemill-error: "


@contextmanager
def carry() -> Iterator[None]:
    """Around what Spark calls in a process of its own."""
    try:
        yield
    except TidemillError as error:
        raise Carried(error) from error


def _read_carried(error: BaseException) -> ErrorData | None:
    """What the other process raised, if it was an error of ours."""
    line = next((line for line in str(error).splitlines() if _MARK in line), "")
    try:
        data: ErrorData = orjson.loads(line.partition(_MARK)[2])
    except orjson.JSONDecodeError:
        return None
    return data


def job_error(error: Exception, pipeline: str, checkpoint: Offset) -> TidemillError:
    """Sinks' errors come as receipts; this is a worker that was killed, an executor lost, or the log not readable."""
    if (said := _read_carried(error)) is not None:
        said["what"] = f"a Spark job failed: {said['what']}"
        return from_data(said, StreamError)
    return StreamError(
        f"a Spark job failed: {reason(error)}",
        where=f'pipeline "{pipeline}", checkpoint {checkpoint}',
        fix="Nothing is lost: start the pipeline again. If it repeats, look at memory and Spark's log.",
    )


def ours(error: Exception) -> TidemillError:
    """Our own errors are written for people; of others only the kind is sure to hold no row's values."""
    if isinstance(error, TidemillError):
        return error
    message = f"{type(error).__module__}.{type(error).__qualname__}" + (
        f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
    )
    return DeliveryError(message) if is_retryable(error) else Refused(message)


def start_error(error: Exception, directory: Path) -> StreamError:
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
    data = _read_carried(error) or ErrorData()
    reported: ErrorData = {
        **data,
        "what": f"planning a batch failed: {data.get('what') or first_line(error)}",
        "where": data.get("where") or f'pipeline "{pipeline}"',
        "fix": data.get("fix") or "Look at it: tidemill log stats FILE",
    }
    return from_data(reported, LogError)


def explain(error: Exception) -> TidemillError:
    """The error itself, if it is ours. Of any other only its kind and place: its words may hold a row's values."""
    if isinstance(error, TidemillError):
        return error
    place = traceback.extract_tb(error.__traceback__)[-1]
    return TidemillError(
        f"{type(error).__module__}.{type(error).__qualname__} was not expected",
        where=f"{place.filename}:{place.lineno}",
        fix="Nothing is lost: start the pipeline again. If it repeats, report it.",
    )
