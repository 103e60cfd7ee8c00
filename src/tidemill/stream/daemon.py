"""The parent of Spark's Python workers (`spark.python.daemon.module`), with our modules loaded before it forks.

A worker is a fork of this process. Spark ends workers that were idle for a minute and starts new ones as lanes are
added; born from here they find pyarrow, numba and the compiled kernels in memory (shared, copy on write) instead of
importing them for a second or two while a batch waits.
"""

from __future__ import annotations


def preload() -> None:
    """Loads what lanes need. Starts no threads: they would not survive the fork."""
    from tidemill.model import keyhash
    from tidemill.stream import batch

    keyhash.warm_up()
    batch.warm_up()


if __name__ == "__main__":
    from pyspark.daemon import manager

    preload()
    manager()
