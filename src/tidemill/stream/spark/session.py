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

from tidemill.errors import EnvironmentProblem, SparkLost
from tidemill.stream.spark.class_archive import drop_archive
from tidemill.stream.spark.epochs import warm_workers
from tidemill.stream.spark.gateway import JavaCrashed, StartedJava, ensure_java
from tidemill.stream.spark.settings import AMPLE_SLOTS, session_settings
from tidemill.stream.spark.source import BlockSource
from tidemill.telemetry import events

_LAST_LINES = 50
_TELLING = re.compile(r"(Exception|Error|[Ee]rror)\b|not found|[Cc]ould not")

_EARLY = str(Path(__file__).with_name("early"))


def create_session(
    name: str,
    *,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    scratch: Path | None = None,
    said: Path | None = None,
    java: StartedJava | None = None,
) -> Any:
    """The process's session, made on the first call. `conf` wins over our settings.

    `scratch` is where Spark spills and keeps temporary files; by default a temporary directory of its own. `said` is
    the file for what Java and the Python processes under it write; by default our own standard output and error. `java`
    was started for this session before, with the same settings but for its own options.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    settings = java.settings if java is not None else session_settings(name, master, conf, scratch)
    # spark.pyspark.python reaches tasks, but the streaming source's own process follows the environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # py4j prints a traceback of everything that it also raises; the loop and `reach_spark` say what that means.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    _hush_accumulators()
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        began = time.monotonic()
        ensure_java(settings, said, java)
        java_seconds = time.monotonic() - began
        builder = SparkSession.builder
        for key, value in settings.items():  # Java is there: they do not pass by its command line
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    except JavaCrashed as error:
        dropped = drop_archive(settings["spark.driver.extraJavaOptions"])
        raise EnvironmentProblem(
            "Spark's Java crashed at its start",
            where=f"master {master}",
            fix=("The archive that it took its classes from may be damaged and was removed: start again. " * dropped)
            + f"What Java said stands {f'in {said}' if said else 'above'}.",
        ) from error
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
    session = time.monotonic() - began - java_seconds
    events.emit("stream.spark_started", java_seconds=round(java_seconds, 2), session_seconds=round(session, 2))
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


def cores(spark: Any) -> int:
    """Tasks that run at the same time."""
    return int(spark.sparkContext.defaultParallelism)


def speculates(spark: Any) -> bool:
    """Whether it starts a second task beside one that takes long."""
    return str(spark.sparkContext.getConf().get("spark.speculation", "false")).lower() == "true"


def has_ample_slots(spark: Any) -> bool:
    """Whether a lane more that stands can take nothing from others: slots of `local[*]` are only a number here."""
    return str(spark.sparkContext.master) == f"local[{AMPLE_SLOTS}]"


def lane_addresses(spark: Any) -> tuple[str, str]:
    """Where executors reach this process, and the address to listen on for them: as Spark's own driver does."""
    conf = spark.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return host, conf.get("spark.driver.bindAddress") or host


def warm_up(spark: Any, most: int | None = None) -> None:
    """Starts a Python worker per core, at most so many, and loads the kernels in it. Takes seconds once, then
    milliseconds."""
    warm_workers(spark, min(cores(spark), most or cores(spark)))
