"""Starts Spark's Java process the way a pipeline wants it.

PySpark would put every setting on Java's command line, which everybody on the machine can read. Here they go through a
file that only we can read. What Java and the Python processes under it say goes into a log of their own: it is of use
when something is wrong, and looks like trouble when nothing is (`WARNING: Using incubator modules`, the traceback of a
worker whose pipe was closed by a Ctrl-C).
"""

from __future__ import annotations

import os
import shlex
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tidemill.disk.private import make_directory, open_file

_SUBMIT = "PYSPARK_SUBMIT_ARGS"
# Where PySpark finds a Java that runs already (java_gateway.py); set by who starts Python from Java, too.
JAVA_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_WRITTEN = "_PYSPARK_DRIVER_CONN_INFO_PATH"
# Spark's scripts start a Java process that only prints the command line of the real one.
_LAUNCHER, _LIGHT = "SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1"
# Spark asks for the address of the machine's own name whatever else it is told, and ends where nobody knows that name:
# in a container that is being built, or has no network.
_OWN_ADDRESS, _LOOPBACK = "SPARK_LOCAL_IP", "127.0.0.1"
_LARGE_LOG = 16 << 20
_LOOK_SECONDS = 0.01


class JavaCrashed(Exception):
    """Java ended itself while it started, as it does where it finds its own memory damaged."""


class StartedJava:
    """A Java that starts, and ends when its standard input is closed: with this process at the latest."""

    def __init__(self, settings: Mapping[str, str], said: Path | None) -> None:
        self.settings = dict(settings)
        self._held = ExitStack()
        with ExitStack() as held:
            properties = held.enter_context(_properties(settings))
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-java-")))
            output = held.enter_context(_output(said))
            self._written = folder / "gateway"
            # The settings of an installation (spark-defaults.conf) still count; ours win over them.
            asked = shlex.split(os.environ.get(_SUBMIT, "pyspark-shell"))
            home = str(spark_home())
            given = {"SPARK_HOME": home, "SPARK_CONNECT_MODE": "0", _WRITTEN: str(self._written)}
            alone = {_OWN_ADDRESS: _LOOPBACK} if runs_here(settings["spark.master"]) else {}
            self.process = subprocess.Popen(
                [f"{home}/bin/spark-submit", "--properties-file", properties, "--load-spark-defaults", *asked],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={_LAUNCHER: _LIGHT, **alone, **os.environ, **given},
                # Ctrl-C reaches every process of the terminal; this one must outlive it until the driver has drained.
                preexec_fn=_ignore_interrupts,
            )
            self._held = held.pop_all()

    def connect(self) -> Any:
        """PySpark's gateway to it, once it answers. `PySparkRuntimeError` or `JavaCrashed` if it ended before."""
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway

        with self._held:
            while not self._written.exists():
                code = self.process.poll()
                if code == -signal.SIGABRT:
                    raise JavaCrashed
                if code is not None:
                    raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
                time.sleep(_LOOK_SECONDS)
            content = self._written.read_bytes()
        port, length = struct.unpack_from(">ii", content)
        secret = content[8 : 8 + length].decode()
        with _environment(JAVA_PORT, str(port)), _environment(_SECRET, secret):
            gateway = launch_gateway()
        gateway.proc = self.process
        return gateway

    def close(self) -> None:
        """If nobody connected."""
        with self._held:
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process.terminate()
            self.process.wait()


def ensure_java(settings: Mapping[str, str], said: Path | None = None, started: StartedJava | None = None) -> None:
    """Starts Java, if this process has none yet, or connects to the one that was `started`. `said` is the file for what
    it writes; by default our own streams."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        return
    if JAVA_PORT in os.environ:
        SparkContext._ensure_initialized()
        return
    SparkContext._ensure_initialized(gateway=(started or StartedJava(settings, said)).connect())


def runs_here(master: str) -> bool:
    """Executors are threads of this process, or a test cluster on this machine."""
    return master.startswith("local") or "//127.0.0.1" in master


def spark_home() -> Path:
    """Where Spark is, without importing PySpark."""
    if given := os.environ.get("SPARK_HOME"):
        return Path(given)
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).resolve().parent
    downloaded = package / "spark-distribution"  # PYSPARK_HADOOP_VERSION, at installation
    return downloaded if downloaded.is_dir() else package


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _properties(settings: Mapping[str, str]) -> Iterator[str]:
    """A file in the format of `java.util.Properties`, there until Java has read it; mkstemp makes it 0600."""
    handle, path = tempfile.mkstemp(prefix="tidemill-", suffix=".properties")
    try:
        with open(handle, "w", encoding="ascii") as file:
            file.writelines(f"{_escape(key)}={_escape(value)}\n" for key, value in settings.items())
        yield path
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _escape(text: str) -> str:
    """Everything but plain letters and digits by its number: separators, comments, blanks, line ends, backslashes."""
    units = text.encode("utf-16-be")
    numbers = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(n) if n < 128 and (chr(n).isalnum() or chr(n) in "._-/") else f"\\u{n:04x}" for n in numbers)


@contextmanager
def _output(said: Path | None) -> Iterator[int | None]:
    if said is None:
        yield None
        return
    make_directory(said.parent)
    with suppress(FileNotFoundError):
        if said.stat().st_size > _LARGE_LOG:
            said.replace(said.with_suffix(".log.1"))
    file = open_file(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
