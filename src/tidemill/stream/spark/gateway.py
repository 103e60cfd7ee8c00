"""Starts Spark's Java process the way a pipeline wants it.

PySpark would put every setting on Java's command line, which everybody on the machine can read. Here they go through a
file that only we can read. What Java and the Python processes under it say goes into a log of their own: it is of use
when something is wrong, and looks like trouble when nothing is (`WARNING: Using incubator modules`, the traceback of a
worker whose pipe was closed by a Ctrl-C).
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from tidemill.disk.private import make_directory, open_file

_SUBMIT = "PYSPARK_SUBMIT_ARGS"
# Spark's scripts start a Java process that only prints the command line of the real one.
_LAUNCHER, _LIGHT = "SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1"
# Spark asks for the address of the machine's own name whatever else it is told, and ends where nobody knows that name:
# in a container that is being built, or has no network.
_OWN_ADDRESS, _LOOPBACK = "SPARK_LOCAL_IP", "127.0.0.1"
_LARGE_LOG = 16 << 20


def ensure_java(settings: Mapping[str, str], said: Path | None = None, *, alone: bool = False) -> None:
    """Starts Java, if this process has none yet. `said` is the file for what it writes; by default our own streams.
    `alone`: no other machine has to reach it."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        return
    from pyspark.java_gateway import launch_gateway

    with _properties(settings) as file, _output(said) as output:
        options: dict[str, Any] = {"stdout": output, "stderr": output} if output is not None else {}
        # The settings of an installation (spark-defaults.conf) still count; ours win over them.
        arguments = f"--properties-file {shlex.quote(file)} --load-spark-defaults"
        submit = f"{arguments} {os.environ.get(_SUBMIT, 'pyspark-shell')}"
        address = _environment(_OWN_ADDRESS, os.environ.get(_OWN_ADDRESS, _LOOPBACK)) if alone else nullcontext()
        with _environment(_SUBMIT, submit), _environment(_LAUNCHER, os.environ.get(_LAUNCHER, _LIGHT)), address:
            gateway = launch_gateway(popen_kwargs=options)
    SparkContext._ensure_initialized(gateway=gateway)


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
