"""The parent of Spark's Python workers (`spark.python.daemon.module`), with our modules loaded before it forks.

A worker is a fork of this process. Spark ends workers that were idle for a minute and starts new ones as lanes are
added; born from here they find pyarrow, numba and the compiled kernels in memory (shared, copy on write) instead of
importing them for a second or two while a batch waits.

It must have one thread when it forks: of several, the child has one, and whatever the others held stays locked in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# Before Arrow is loaded, which would start a thread that tidies up after an allocator that nobody uses here.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


def preload() -> None:
    """Loads what lanes need, and starts no thread."""
    from tidemill.model import keyhash
    from tidemill.stream import batch

    keyhash.warm_up()
    batch.warm_up()


def until_hung_up(worker: Callable[..., int]) -> Callable[..., int]:
    """A worker whose JVM has hung up (a batch was given up, a session ended) just ends: nobody is there to be told, and
    what PySpark would print looks like trouble on the terminal of whoever pressed Ctrl-C."""

    def work(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)

    return work


if __name__ == "__main__":
    from pyspark import daemon

    preload()
    daemon.worker = until_hung_up(daemon.worker)
    daemon.manager()
