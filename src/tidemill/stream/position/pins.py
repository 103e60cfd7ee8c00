"""Spark's directory against our checkpoint, before a query starts. Ours is the truth; Spark's pins batch bounds.

Spark writes `offsets/<n>` when batch n begins and `commits/<n>` when it ended. Of its directory we need one fact: is
the batch under way, if any, one that our checkpoint stands before (deliver it again, with the same bounds and lanes)
or right after (it was delivered; Spark only did not note it)? In any other case an operator moved the checkpoint, or
the directory is of another life of the pipeline: it is cleared, and the stream begins at the checkpoint.

In real time Spark's offsets are epochs and mean nothing to a replay; `pin_file.py` pins the batch under way. A batch
that one mode of the trigger pinned is delivered as it is by the other.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson

from tidemill.contracts import StateStore
from tidemill.disk.private import make_directory, sync_path
from tidemill.model.position import Offset
from tidemill.stream.position.pin_file import PinFile, PinnedBatch

_QUERY = "query"
_EPOCHS = "epochs"
_OLDER = "begin.json"
"""Beside the query: where versions before the state store noted the start."""


def settle(
    directory: Path, checkpoint: Offset, state: StateStore, pipeline: str, sink: str = ""
) -> tuple[Path, Offset]:
    """The directory for Spark's query, and the offset at which its first batch began.

    The second is noted in the state store, because Spark does not write it: a first batch under way would otherwise
    begin elsewhere after a restart. `sink` names one with a stream of its own.
    """
    query = directory / _QUERY
    _import_start(directory, state, pipeline, sink)
    begin = state.spark_start(pipeline, sink)
    if begin is None or not agrees(query, begin, checkpoint):
        if begin is None:
            PinFile(directory).clear()
        # The note goes first, so that a clearing that is cut short is done again.
        state.forget_spark_start(pipeline, sink)
        shutil.rmtree(query, ignore_errors=True)
        make_directory(directory)
        begin = checkpoint
        state.save_spark_start(pipeline, begin, sink)
    return query, begin


def settle_real_time(
    directory: Path, checkpoint: Offset, state: StateStore, pipeline: str, sink: str = ""
) -> tuple[Path, PinFile]:
    """An empty directory for Spark's epochs, and the file that pins batches; it holds the one that is under way, also
    where that was planned as a micro-batch."""
    query, pins = directory / _QUERY, PinFile(directory)
    _import_start(directory, state, pipeline, sink)
    begin = state.spark_start(pipeline, sink)
    if begin is None:
        pins.clear()
        state.save_spark_start(pipeline, checkpoint, sink)
    elif (found := planned_by_spark(query, begin, checkpoint)) is not None:
        pins.write(found)
    for each in (query, directory / _EPOCHS):  # after the pin is on disk
        shutil.rmtree(each, ignore_errors=True)
    make_directory(directory)
    return directory / _EPOCHS, pins


def planned_by_spark(query: Path, begin: Offset, checkpoint: Offset) -> PinnedBatch | None:
    """The micro-batch that begins at the checkpoint, if Spark has planned one and not noted its end."""
    try:
        planned = _numbers(query / "offsets")
        if not planned or planned[-1] in _numbers(query / "commits"):
            return None
        last = planned[-1]
        start = begin if last == 0 else _offset(query / "offsets" / str(last - 1))["offset"]
        end = _offset(query / "offsets" / str(last))
        found = PinnedBatch(int(start), int(end["offset"]), int(end.get("lanes", 1)), str(end.get("by", "table")))
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None  # torn by a crash: no lane has seen it
    return found if found.start == checkpoint else None


def agrees(query: Path, begin: Offset, checkpoint: Offset) -> bool:
    """Whether Spark, left alone, goes on in a way that the checkpoint allows."""
    try:
        planned = _numbers(query / "offsets")
        ended = _numbers(query / "commits")
        if not planned:
            return begin == checkpoint
        last = planned[-1]
        end = _end(query / "offsets" / str(last))
        if last in ended:
            return end == checkpoint
        start = begin if last == 0 else _end(query / "offsets" / str(last - 1))
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return False  # torn by a crash, or not what this version of Spark writes
    return checkpoint in (start, end)


def planned_end(query: Path, number: int) -> dict[str, Any]:
    """The end of batch `number`, as the source pinned it: Spark notes it before the batch begins."""
    return _offset(query / "offsets" / str(number))


def planned_at(query: Path, number: int) -> int:
    """When Spark planned batch `number`, nanoseconds since 1970."""
    metadata = orjson.loads((query / "offsets" / str(number)).read_text().splitlines()[1])
    return int(metadata["batchTimestampMs"]) * 1_000_000


def _import_start(directory: Path, state: StateStore, pipeline: str, sink: str) -> None:
    """A file that is there was written by an older version, also one that ran in between: it wins, and goes. Durably:
    back after a power cut, it would win over a later start."""
    path = directory / _OLDER
    try:
        start = int(orjson.loads(path.read_bytes())["offset"])
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError):
        state.forget_spark_start(pipeline, sink)
    else:
        state.save_spark_start(pipeline, start, sink)
    path.unlink()
    sync_path(directory)


def _numbers(directory: Path) -> list[int]:
    return (
        sorted(int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()) if directory.exists() else []
    )


def _end(file: Path) -> Offset:
    return int(_offset(file)["offset"])


def _offset(file: Path) -> dict[str, Any]:
    """An offset file: its version, a line of metadata, then a line per source; ours has one."""
    offset: dict[str, Any] = orjson.loads(file.read_text().splitlines()[2])
    return offset
