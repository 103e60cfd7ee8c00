"""Spark's Python processes take PySpark as it is installed, not out of the archives that Spark puts on their path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from tidemill.stream.spark import session as sessions

EARLY = Path(sessions.__file__).with_name("early")
LIBRARIES = Path(pyspark.__file__).parent / "python" / "lib"
LOOK = """
import sys, zipimport
import pyspark.worker
print(pyspark.__file__)
print(*[place for place in sys.path if place.endswith((".zip", ".jar"))], sep=":")
print(len(zipimport._zip_directory_cache))
"""


def look(*path: Path) -> tuple[str, list[str], int]:
    """Where PySpark came from, which archives are on the path, and the lists of how many are in memory."""
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, env=environment)
    origin, archives, lists = done.stdout.splitlines()
    return origin, archives.split(":"), int(lists)


def test_archives_of_an_installed_pyspark_are_left_out() -> None:
    """Out of the archive it is compiled anew, and each worker keeps the lists of its files once for every package."""
    archives = sorted(LIBRARIES.glob("*.zip"))
    origin, left, lists = look(*archives, EARLY)
    assert origin == pyspark.__file__
    assert not {str(each) for each in archives} & set(left)
    assert lists == 0


def test_archives_of_a_spark_beside_stay(tmp_path: Path) -> None:
    """Of a cluster's own installation, or a user's own packages."""
    archives = [Path(shutil.copy(each, tmp_path)) for each in sorted(LIBRARIES.glob("*.zip"))]
    origin, left, _ = look(*archives, EARLY)
    assert origin == str(tmp_path / "pyspark.zip" / "pyspark" / "__init__.py")
    assert {str(each) for each in archives} <= set(left)
