"""In place of a Spark session, where nothing runs in it."""

from types import SimpleNamespace
from typing import Any


def session_of(master: str, **conf: str) -> Any:
    """All that is asked of a session before a run: how many slots it has, and whether it starts tasks twice."""
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: conf))


NO_SPARK = session_of("local[64]")
