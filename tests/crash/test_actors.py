"""The proof's own tools."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.crash.actors import _Actor, on_stage, wait_for

_STUCK = """
import os, threading

def child_that_hangs():
    print("begun: child", flush=True)
    threading.Event().wait()

def parent_that_hangs(child):
    print("begun: parent", flush=True)
    os.waitpid(child, 0)

child = os.fork()
parent_that_hangs(child) if child else child_that_hangs()
"""


def test_who_does_not_go_on_tells_what_it_is_about(tmp_path: Path) -> None:
    actor = _Actor(tmp_path)
    with on_stage(actor):
        actor._spawn([sys.executable, "-c", _STUCK])
        wait_for(lambda: actor.output.count("begun") == 2, 180, "it did not begin")
        said = actor.testimony()
    assert all(words in said for words in ("begun", "in child_that_hangs", "in parent_that_hangs"))
