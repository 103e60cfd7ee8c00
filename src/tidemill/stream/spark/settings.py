"""The settings of a session for pipelines: quiet, and tuned so that a tiny batch is cheap (ADR 0010). PySpark is not
imported here: Java is started with them before it is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tidemill.disk.private import make_directory
from tidemill.stream.spark.class_archive import archive_options
from tidemill.stream.spark.gateway import runs_here

# Of a session on this machine whose size nobody chose: more than lanes can ever stand. A slot costs nothing there.
AMPLE_SLOTS = 4096

_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"  # see _CHEAP
)

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.catalogImplementation": "in-memory",
    # What Spark shows of its settings (UI, event log). Its own list leaves out `credential`, `private`, `passphrase`.
    "spark.redaction.regex": "(?i)secret|pass(word|wd|phrase)|token|credential|private|(access|api|account)[._-]?key",
}

# Measured in ADR 0010: together they take a tiny batch from about 280 ms to about 100 ms.
_CHEAP = {
    # Spark writes two small files per batch. The default manager starts some twenty child processes for them.
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Half the time of a small Python stage was the exchange over TCP; why it is slow we did not find out.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "tidemill.stream.spark.daemon",
    "spark.sql.streaming.pollingDelay": "1ms",  # `latestOffset` itself waits for the log
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A batch's plan is one scan: nothing to adapt, no code worth generating. It made no measurable difference.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.locality.wait": "0",
}

# Hadoop gives every file that Spark writes a mode, whatever the umask. They are as private as ours.
_PRIVATE = {"spark.hadoop.fs.permissions.umask-mode": "077"}

# Spark would wait for ever for the thread of a query that is to end; that may wait for a disk that does not answer.
_IMPATIENT = {"spark.sql.streaming.stopTimeout": "30s"}

# Rows do not come through Java, which only plans: the heap begins small, and one thread tidies it up. The compiler that
# optimises waits until code is really hot; it took a fifth of the CPU of Spark's start (ADR 57).
_SMALL_HEAP = (
    "-XX:+UseSerialGC -Xms64m -XX:Tier4InvocationThreshold=30000 -XX:Tier4MinInvocationThreshold=5000 "
    "-XX:Tier4CompileThreshold=60000 -XX:Tier4BackEdgeThreshold=200000"
)
_SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"  # read by Spark's own start script
_JAVA_READS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Without it every small file is followed by a .crc file of its own.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

# Spark hands out the worker that has been idle for the longest time. Of more than one epoch needs, each would get the
# lane in turn, and keep what its largest batch took (ADR 71).
_IDLE_WORKERS = "spark.python.factory.idleWorkerMaxPoolSize"

# Where nothing is planned in Java, its start is most of what it does: the quick compiler is enough (ADR 66).
_SHORT_PLANS = "-XX:TieredStopAtLevel=1"


def session_settings(
    name: str, master: str, conf: Mapping[str, str] | None = None, scratch: Path | None = None, *, standing: int = 0
) -> dict[str, str]:
    """All of them, with the master and the name; `conf` wins over ours. `standing`: for as long as the session lives
    all its lanes stand, no more than so many of one stream; 0 where Java may have to plan batches."""
    settings = {
        "spark.master": master,
        "spark.app.name": name,
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        **_QUIET,
        **_CHEAP,
        **_PRIVATE,
        **_IMPATIENT,
        **(_LOCAL if runs_here(master) else {}),
        **_places(scratch),
        **({_IDLE_WORKERS: str(standing)} if standing else {}),
        **(conf or {}),
    }
    settings["spark.driver.extraJavaOptions"] = java_options(settings, plans=not standing)
    return settings


def java_options(settings: Mapping[str, str], *, plans: bool = True) -> str:
    """For the driver's Java; what a document asks for comes last and wins."""
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    # Java goes on without the thread that found no memory, and whoever waits for that thread waits for ever.
    honest = "-XX:+ExitOnOutOfMemoryError"
    asked = settings.get("spark.driver.extraJavaOptions", "")
    # Who asks for more memory has a use for it. Java takes one collector, and does not start with two.
    others = " ".join([asked, *(os.environ.get(name, "") for name in _JAVA_READS)])
    chosen = "spark.driver.memory" in settings or re.search(r"-XX:\+Use\w+GC\b", others)
    small = [] if chosen else [_SMALL_HEAP if plans else f"{_SMALL_HEAP} {_SHORT_PLANS}"]
    archive = archive_options(f"{others} {os.environ.get(_SUBMIT_OPTIONS, '')}")
    return " ".join([quiet, honest, *small, *filter(None, [archive, asked])])


def _places(scratch: Path | None) -> dict[str, str]:
    if scratch is None:
        return {}
    make_directory(scratch)
    return {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
