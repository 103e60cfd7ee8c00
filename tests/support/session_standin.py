"""In place of a Spark session, where nothing runs in it."""

from types import SimpleNamespace
from typing import Any

NO_SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[64]"))
"""All that is asked of a session before a run: how many slots it has."""
