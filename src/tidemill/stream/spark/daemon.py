"""The parent of Spark's Python workers (`spark.python.daemon.module`), with our modules loaded before it forks.

A worker is a fork of this process. Spark ends workers that were idle for a minute and starts new ones as lanes are
added; born from here they find pyarrow, numba and the compiled kernels in memory (shared, copy on write) instead of
importing them for a second or two while a batch waits.

What a worker only reads stays shared: PySpark collects garbage after every task, which would write to each object that
came from here, so they are taken out of it (`gc.freeze`).

It must have one thread when it forks: of several, the child has one, and whatever the others held stays locked in it.

Java waits without end for this process to be ready and for each worker to be born, and meanwhile holds the lock that
every stream needs for its own workers (`SparkEnv.createPythonWorker`, Spark 4.3). So what does not get there in time
ends: then a job fails, and is tried again.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Callable
from typing import Any

# Kernels that have to be compiled first take the better part of a minute on a busy machine.
_READY_SECONDS = 300
_BORN_SECONDS = 60

# Before Arrow is loaded, which would start a thread that tidies up after an allocator that nobody uses here.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


def preload() -> None:
    """Loads what lanes need, and starts no thread. A worker collects garbage after every task (`pyspark.daemon`): what
    was loaded here is not looked through then, which took 80 ms a task, and its pages stay shared."""
    import pyspark.worker  # noqa: F401  what a worker runs

    from tidemill.model import keyhash
    from tidemill.stream.lane import deliver, sensing, standing  # noqa: F401
    from tidemill.stream.spark import source  # noqa: F401

    keyhash.warm_up()
    deliver.warm_up()
    gc.collect()
    gc.freeze()


def watch_births(seconds: int = _BORN_SECONDS) -> None:
    """From now on a fork of this process that is no worker within so many seconds is ended, by the kernel: whatever it
    waits for, it need not run for that."""
    parent = os.getpid()

    def limit_life() -> None:
        if os.getppid() == parent:  # not what a worker starts
            signal.alarm(seconds)

    os.register_at_fork(after_in_child=limit_life)


def until_hung_up(worker: Callable[..., int]) -> Callable[..., int]:
    """A worker whose JVM has hung up (a batch was given up, a session ended) just ends: nobody is there to be told, and
    what PySpark would print looks like trouble on the terminal of whoever pressed Ctrl-C."""

    def work(*arguments: Any) -> int:
        signal.alarm(0)  # see `watch_births`
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)

    return work


if __name__ == "__main__":
    from pyspark import daemon

    faulthandler.dump_traceback_later(_READY_SECONDS, exit=True)
    preload()
    faulthandler.cancel_dump_traceback_later()  # and its thread is gone
    watch_births()
    daemon.worker = until_hung_up(daemon.worker)
    daemon.manager()
