"""What the driver knows by now, for Spark's planning process on the same machine (`Plan.changing`): structures that
processors give, those that sinks see where not every schema change is made there, and tables in quarantine.

The plan of a stream is that of its start. What is learned later reaches the lanes of the next batches this way: the
loop writes the file before a batch ends, `partitions` reads it when the next one is planned. The schema registry and
the state store keep the structures; the file is written anew at each start and may be lost between two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tidemill.disk.private import make_directory
from tidemill.disk.replace import replace_file


def write(path: Path, known: dict[str, Any]) -> None:
    """Replaced in one step: a reader has the old or the new one."""
    make_directory(path.parent)
    replace_file(path, orjson.dumps(known), durable=False)


def read(path: Path) -> dict[str, Any]:
    known: dict[str, Any] = orjson.loads(path.read_bytes())
    return known
