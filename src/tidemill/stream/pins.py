"""Spark's directory against our checkpoint, before a query starts. Ours is the truth; Spark's pins batch bounds.

Spark writes `offsets/<n>` when batch n begins and `commits/<n>` when it ended. Of its directory we need one fact: is
the batch under way, if any, one that our checkpoint stands before (deliver it again, with the same bounds and lanes)
or right behind (it was delivered; Spark only did not note it)? In any other case an operator moved the checkpoint, or
the directory is of another life of the pipeline: it is cleared, and the stream begins at the checkpoint.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson

from tidemill.disk.private import make_directory
from tidemill.disk.replace import replace_file
from tidemill.model.position import Offset

_BEGIN = "begin.json"
_QUERY = "query"


def settle(directory: Path, checkpoint: Offset) -> tuple[Path, Offset]:
    """The directory for Spark's query, and the offset at which its first batch began.

    The second is noted beside the query, because Spark does not write it: a first batch under way would otherwise
    begin elsewhere after a restart.
    """
    query = directory / _QUERY
    begin = _read_begin(directory)
    if begin is None or not agrees(query, begin, checkpoint):
        clear(directory)
        begin = checkpoint
        make_directory(directory)
        replace_file(directory / _BEGIN, orjson.dumps({"offset": begin}))
    return query, begin


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


def clear(directory: Path) -> None:
    """Forgets Spark's side: the stream then starts from our checkpoint. The note goes first, so that a clearing
    that is cut short is done again."""
    (directory / _BEGIN).unlink(missing_ok=True)
    shutil.rmtree(directory / _QUERY, ignore_errors=True)


def _read_begin(directory: Path) -> Offset | None:
    try:
        return int(orjson.loads((directory / _BEGIN).read_bytes())["offset"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _numbers(directory: Path) -> list[int]:
    return (
        sorted(int(entry.name) for entry in directory.iterdir() if entry.name.isdigit()) if directory.exists() else []
    )


def _end(file: Path) -> Offset:
    """An offset file: its version, a line of metadata, then a line per source; ours has one."""
    lines = file.read_text().splitlines()
    offset: dict[str, Any] = orjson.loads(lines[2])
    return int(offset["offset"])
