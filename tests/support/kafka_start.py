"""What makes the many Kafka brokers cheap that tests start, kill and start again within seconds.

As for Spark (`tests/support/spark_start.py`): an archive of the classes that a broker loads, and only the quicker one
of Java's compilers, spare three fifths of the CPU time until it answers. `make test` makes the archive once.

python -m tests.support.kafka_start ARCHIVE
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.kafka import JAVA_OPTIONS, Broker, fetch_jars

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "build" / "kafka.jsa"
_SHORT = "-XX:TieredStopAtLevel=1"


def java_options() -> str:
    # Java would warn of an archive that does not fit, in the broker's log.
    return f"{_SHORT} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else _SHORT


def make_archive(path: Path) -> None:
    """Starts a broker whose Java writes down its classes as it ends."""
    made = path.with_suffix(".part")
    with tempfile.TemporaryDirectory(prefix="tidemill-classes-") as folder:
        broker = Broker(Path(folder), fetch_jars(ROOT / ".services" / "kafka"))
        os.environ[JAVA_OPTIONS] = f"{_SHORT} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
        with broker:
            pass
    made.replace(path)


if __name__ == "__main__":
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    try:
        make_archive(Path(sys.argv[1]).absolute())
    except EnvironmentProblem as problem:  # tests take librdkafka's mock cluster then
        sys.exit(problem.what)
