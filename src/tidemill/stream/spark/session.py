"""A Spark session for pipelines: local by default, quiet, and tuned so that a tiny batch is cheap (ADR 0010).

One session serves all pipelines of a process. `warm_up` starts the Python workers before the first batch needs them.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tidemill.disk.private import make_directory
from tidemill.errors import EnvironmentProblem, SparkLost
from tidemill.stream.spark.epochs import warm_workers
from tidemill.stream.spark.gateway import ensure_java
from tidemill.stream.spark.source import BlockSource
from tidemill.telemetry import events

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
_JAVA_READS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

# Of a session on this machine whose size nobody chose: more than lanes can ever stand. A slot costs nothing there.
AMPLE_SLOTS = 4096

_LAST_LINES = 50
_TELLING = re.compile(r"(Exception|Error|[Ee]rror)\b|not found|[Cc]ould not")

_EARLY = str(Path(__file__).with_name("early"))

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Without it every small file is followed by a .crc file of its own.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


def create_session(
    name: str,
    *,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    scratch: Path | None = None,
    said: Path | None = None,
) -> Any:
    """The process's session, made on the first call. `conf` wins over our settings.

    `scratch` is where Spark spills and keeps temporary files; by default a temporary directory of its own. `said` is
    the file for what Java and the Python processes under it write; by default our own standard output and error.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    settings = {
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        **_QUIET,
        **_CHEAP,
        **_PRIVATE,
        **_IMPATIENT,
        **(_LOCAL if runs_here(master) else {}),
        **_places(scratch),
        **(conf or {}),
    }
    # spark.pyspark.python reaches tasks, but the streaming source's own process follows the environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    settings["spark.driver.extraJavaOptions"] = java_options(settings)
    # py4j prints a traceback of everything that it also raises; the loop and `reach_spark` say what that means.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    _hush_accumulators()
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        began = time.monotonic()
        ensure_java({"spark.master": master, "spark.app.name": name, **settings}, said, alone=runs_here(master))
        java = time.monotonic() - began
        for key, value in settings.items():  # Java is there: they do not pass by its command line
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    except (PySparkRuntimeError, Py4JError) as error:
        reason = _java_reason(error, said)
        raise EnvironmentProblem(
            f"Spark did not start: {reason}" if reason else "Spark did not start",
            where=f"master {master}",
            fix="The master must be there, and Java 17 or newer on the PATH or in JAVA_HOME; its own words stand "
            + (f"in {said}." if said else "above.")
            + " Try: tidemill doctor",
        ) from error
    if threading.current_thread() is threading.main_thread():
        # PySpark puts its own handler there, which ends the process with the batch under way.
        signal.signal(signal.SIGINT, on_interrupt)
    _skip_installed_sources(spark)
    register_source(spark)
    # Workers are shared by who has the same environment: standing lanes, micro-batches and snapshots.
    spark.sparkContext.environment["PYTHONPATH"] = _early_path(spark.sparkContext.environment)
    session = time.monotonic() - began - java
    events.emit("stream.spark_started", java_seconds=round(java, 2), session_seconds=round(session, 2))
    return spark


def _java_reason(error: Exception, said: Path | None) -> str:
    """What Java itself says was wrong, as far as one line has it; who reads this may have no access to the file, or the
    file may be gone with its directory."""
    raised = [line.removeprefix(":").strip() for line in str(error).splitlines() if line.startswith(":")]
    if raised:  # Java runs, and the session was refused: py4j gives the stack after what it called
        return raised[0]
    written = said.read_text(errors="replace").splitlines()[-_LAST_LINES:] if said and said.exists() else []
    lines = [line.strip().removeprefix("Caused by: ") for line in written if not line.lstrip().startswith("at ")]
    return ([line for line in lines if _TELLING.search(line)] or [line for line in lines if line] or [""])[-1]


def java_options(settings: Mapping[str, str]) -> str:
    """For the driver's Java; what a document asks for comes last and wins."""
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    # Java goes on without the thread that found no memory, and whoever waits for that thread waits for ever.
    honest = "-XX:+ExitOnOutOfMemoryError"
    asked = settings.get("spark.driver.extraJavaOptions", "")
    # Who asks for more memory has a use for it. Java takes one collector, and does not start with two.
    others = " ".join([asked, *(os.environ.get(name, "") for name in _JAVA_READS)])
    chosen = "spark.driver.memory" in settings or re.search(r"-XX:\+Use\w+GC\b", others)
    small = [] if chosen else [_SMALL_HEAP]
    return " ".join([quiet, honest, *small, *filter(None, [asked])])


def _hush_accumulators() -> None:
    """PySpark's server for counters of tasks prints a traceback when Java goes first, as in a SIGTERM to all processes.
    Nothing here counts with it."""
    from pyspark import accumulators

    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        server.handle_error = lambda self, request, address: events.emit("spark.counters_ended")


def _skip_installed_sources(spark: Any) -> None:
    """Spark would start a Python process to look for sources in packages that are called `pyspark_…`, and keep it. In a
    session of ours nobody names one (DataSourceManager.initialStaticDataSourceBuilders, Spark 4.3)."""
    jvm = spark.sparkContext._jvm
    manager = getattr(getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$"), "MODULE$")
    none = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
    getattr(manager, "dataSourceBuilders_$eq")(jvm.scala.Option.apply(none))


def register_source(spark: Any, source: Any = BlockSource) -> None:
    """Makes a source in Python known, with an environment that threads may share.

    Every stream that starts writes into the environment of its source's function, in a thread of its own, while jobs
    serialise it (PythonStreamingSourceRunner, Spark 4.3). In the HashMap that PySpark would make of it two streams that
    start at once may lose an entry and count it all the same: from then on no job of the session can be read.
    With it goes the path of `early/`, so that a slow start of the planning process is only slow.
    """
    if not hasattr(spark, "_jsparkSession"):  # Spark Connect: the map is made elsewhere
        spark.dataSource.register(source)
        return
    context = spark.sparkContext
    plain = context.environment
    early = plain | {"PYTHONPATH": _early_path(plain)}
    context.environment = context._jvm.java.util.concurrent.ConcurrentHashMap(early)
    try:
        spark.dataSource.register(source)
    finally:
        context.environment = plain


def _early_path(environment: Mapping[str, str]) -> str:
    already = environment.get("PYTHONPATH", "")
    return already if already.startswith(_EARLY) else os.pathsep.join(filter(None, (_EARLY, already)))


def close_session(spark: Any) -> None:
    """Also when its JVM is gone already."""
    with suppress(SparkLost), reach_spark():
        spark.stop()


def is_alive(spark: Any) -> bool:
    """Whether its Java process is there and has not stopped it."""
    try:
        with reach_spark():
            return not spark.sparkContext._jsc.sc().isStopped()
    except (SparkLost, AttributeError):  # PySpark takes `_jsc` away from a context that it stopped itself
        return False


def forget_session(spark: Any) -> None:
    """After its Java process died: PySpark would go on asking it. The next `create_session` starts another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    close_session(spark)
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None


@contextmanager
def reach_spark() -> Iterator[None]:
    """Calls into the JVM; a JVM that was killed answers with errors of the socket, which become `SparkLost`."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError:
        raise  # Java answered: it is there
    except (Py4JError, ConnectionError) as error:
        raise SparkLost(
            "Spark's Java process is gone",
            fix="It was killed, or found no memory (spark.conf: spark.driver.memory). Nothing is lost: "
            "start the pipeline again.",
        ) from error


def runs_here(master: str) -> bool:
    """Executors are threads of this process, or a test cluster on this machine."""
    return master.startswith("local") or "//127.0.0.1" in master


def cores(spark: Any) -> int:
    """Tasks that run at the same time."""
    return int(spark.sparkContext.defaultParallelism)


def has_ample_slots(spark: Any) -> bool:
    """Whether a lane more that stands can take nothing from others: slots of `local[*]` are only a number here."""
    return str(spark.sparkContext.master) == f"local[{AMPLE_SLOTS}]"


def lane_addresses(spark: Any) -> tuple[str, str]:
    """Where executors reach this process, and the address to listen on for them: as Spark's own driver does."""
    conf = spark.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return host, conf.get("spark.driver.bindAddress") or host


def warm_up(spark: Any) -> None:
    """Starts a Python worker per core and loads the kernels in it. Takes seconds once, then milliseconds."""
    warm_workers(spark, cores(spark))


def _places(scratch: Path | None) -> dict[str, str]:
    if scratch is None:
        return {}
    make_directory(scratch)
    return {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
