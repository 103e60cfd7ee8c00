"""What makes the many Spark sessions cheap that tests start and end again within seconds.

Most of the time that a session takes to start is Java's: it loads 15,000 classes, and compiles code that is hardly run
again. An archive of the loaded classes, and only the quicker one of its compilers, spare two thirds of that CPU time.
`make test` makes the archive once per environment; without it, or with one of another Java, tests only take longer.

python -m tests.support.spark_start ARCHIVE
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Read by Spark's own start script.
VARIABLE = "SPARK_SUBMIT_OPTS"
ARCHIVE = Path(__file__).parents[2] / "build" / "spark.jsa"
_SECONDS = 240.0  # kernels may have to be compiled first
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_options(*, short: bool = True) -> str:
    """For a Java that lives for seconds, or else for one that lives as long as the run."""
    # Java would warn on standard output of an archive that does not fit, between lines that tests read.
    archive = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else ""
    return f"{_SHORT if short else ''} {archive}".strip()


@contextmanager
def long_life() -> Iterator[None]:
    """A session that is started meanwhile has all of Java's compilers. What an operator set stays."""
    kept = os.environ.get(VARIABLE)
    if kept == java_options():
        os.environ[VARIABLE] = java_options(short=False)
    try:
        yield
    finally:
        if kept is not None:
            os.environ[VARIABLE] = kept


def make_archive(path: Path) -> None:
    """Delivers a few events in both modes, with a Java that writes down its classes as it ends."""
    from pyspark import SparkContext

    from tests.stream.conftest import Mill, install_scribe
    from tests.support.blocks import make_change
    from tidemill.config.spec import Trigger
    from tidemill.stream.spark.session import create_session

    made = path.with_suffix(".part")
    os.environ[VARIABLE] = f"{_SHORT} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
    with tempfile.TemporaryDirectory(prefix="tidemill-classes-") as folder:
        directory = Path(folder)
        spark = create_session("classes", master="local[4]", scratch=directory / "scratch")
        java: Any = SparkContext._gateway.proc
        install_scribe(spark, directory)
        mill = Mill(directory, spark)
        for number, mode in enumerate(("micro_batch", "real_time")):
            mill.log.append(make_change(10, number=number + 1))
            mill.run(lanes=2, trigger=Trigger.model_validate({"mode": mode}), seconds=_SECONDS)
        mill.log.close()
        mill.store.close()
        spark.stop()
        java.stdin.close()
        java.wait(300)
    made.replace(path)


if __name__ == "__main__":
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    make_archive(Path(sys.argv[1]).absolute())
