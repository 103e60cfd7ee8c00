"""Spark starts where a container is built or has no network, and says why where it cannot start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import sys
from pathlib import Path
from tidemill.errors import EnvironmentProblem
from tidemill.stream.spark.session import create_session
try:
    spark = create_session("start", master="local[1]", said=Path(sys.argv[1]))
except EnvironmentProblem as error:
    print(error.what)
else:
    print("rows", spark.range(3).count())
    spark.stop()
"""


def start(directory: Path, *before: str, **environment: str) -> str:
    command = [*before, sys.executable, "-c", START, str(directory / "spark.log")]

    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_name_of_the_machine_need_not_have_an_address(tmp_path: Path) -> None:
    """As in a container that is built, or that has no network: Spark ended with an UnknownHostException."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--uts", "true"], check=False).returncode:
        pytest.skip("this user may not give a process a host name of its own")
    renamed = ("unshare", "--uts", "sh", "-c", 'hostname nobody-knows-this-name && exec "$@"', "sh")
    assert start(tmp_path, *renamed) == "rows 3"


def test_what_java_said_is_in_the_error(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'Error: LinkageError: the frog is not linked' >&2\nexit 1\n")
    java.chmod(0o755)
    said = start(tmp_path, JAVA_HOME=str(tmp_path))
    assert said == "Spark did not start: Error: LinkageError: the frog is not linked"


def test_what_java_raised_is_in_the_error(tmp_path: Path) -> None:
    said = start(tmp_path, SPARK_LOCAL_IP="frog.invalid")
    assert said.startswith("Spark did not start: java.net.UnknownHostException: frog.invalid")
