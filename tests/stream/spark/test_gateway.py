"""Java, started before PySpark is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tidemill.stream.spark.gateway import StartedJava
from tidemill.stream.spark.settings import session_settings

FIRST = """
import sys
from tidemill.stream.spark.gateway import StartedJava
from tidemill.stream.spark.settings import session_settings
started = StartedJava(session_settings("t", "local[1]"), None)
print("pyspark" in sys.modules)
from tidemill.stream.spark.session import create_session
spark = create_session("t", master="local[1]", java=started)
print(spark.sparkContext.parallelize([1, 2], 1).sum())
java = spark.sparkContext._gateway.proc
print(java is started.process, java.poll())
spark.stop()
"""


@pytest.mark.slow
def test_a_session_takes_the_java_that_was_started_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["False", "3", "True", "None"], done.stderr


@pytest.mark.slow
def test_a_java_that_nobody_needs_ends_and_leaves_no_file_of_settings(tmp_path: Path) -> None:
    started = StartedJava(session_settings("t", "local[1]"), tmp_path / "spark.log")
    command = psutil.Process(started.process.pid).cmdline()
    file = Path(command[command.index("--properties-file") + 1])
    assert file.exists()
    assert file.stat().st_mode & 0o777 == 0o600
    started.close()
    assert started.process.poll() is not None
    assert not file.exists()
