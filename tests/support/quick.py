"""Which tests are `quick`: they need no server and no Spark. tests/conftest.py marks them; `make quick` runs them.

Nobody keeps a list. A test's code is followed through its fixtures and the helpers in tests/ it names; if it can reach
a private server or a Spark session, it is not quick. What cannot be seen that way (a command that starts a server, a
search of many examples) is marked `slow` by hand. A quick test that starts a server all the same fails.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

#: What is reached through one of these needs a process that takes its time to start.
_HEAVY = ("tidemill.lab.servers.", "tidemill.lab.demo", "tidemill.lab.bench", "pyspark.")
#: The same, by a name that code imports or asks for while it runs.
_HEAVY_NAMES = {"create_session", "SparkSession", "getfixturevalue"}
#: Helpers among the servers that start nothing, or a thread of this process.
_LIGHT = ("tidemill.lab.servers.process.", "tidemill.lab.servers.tls.", "tidemill.lab.servers.identity.")
_LIGHT_NAMES = {
    "tidemill.lab.servers.http_receiver.Receiver",
    "tidemill.lab.servers.http_receiver.ScriptedResponse",
    "tidemill.lab.servers.postgres.installed_bin",
    "tidemill.lab.servers.postgres.embedded_bin",
}
#: Kills are what these folders are about.
_SLOW_FOLDERS = ("tests.crash.", "tests.delivery.")
#: A file system in memory on Linux; three runs leave about half a gigabyte in it.
_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30
#: Programs a quick test may run besides Python: they end at once.
_TOOLS = {"sh", "file", "mount", "umount", "openssl", "git", "true", "unshare"}


def is_quick(item: pytest.Item) -> bool:
    """Whether nothing that the test can reach starts a server or Spark."""
    function = getattr(item, "function", None)
    if function is None or item.get_closest_marker("slow") or function.__module__.startswith(_SLOW_FOLDERS):
        return False
    fixtures = item._fixtureinfo  # type: ignore[attr-defined]  # one object for all parameters of a test
    if id(fixtures) not in _answers:
        quick = not any(_reaches_server(each) for each in (function, *_fixtures(item)))
        _answers[id(fixtures)] = (fixtures, quick)
    return _answers[id(fixtures)][1]


#: For each test, whether it is quick. The objects are kept, so that nothing else gets their ids.
_answers: dict[int, tuple[object, bool]] = {}


#: What was looked at and whether it needs a server. The objects are kept, so that nothing else gets their ids.
_known: dict[int, tuple[object, bool]] = {}


def _reaches_server(thing: object) -> bool:
    if id(thing) not in _known:
        seen: dict[int, object] = {}
        heavy = _needs_server(thing, seen)
        _known[id(thing)] = (thing, heavy)
        if not heavy:  # then all that it reaches is light
            _known.update({key: (each, False) for key, each in seen.items()})
    return _known[id(thing)][1]


def _fixtures(item: pytest.Item) -> Iterator[Callable[..., Any]]:
    # pytest has no public way to ask for the definitions behind the names.
    for found in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
        for definition in found:
            yield definition.func


def _needs_server(thing: object, seen: dict[int, object]) -> bool:
    if id(thing) in seen:
        return False
    if id(thing) in _known:
        return _known[id(thing)][1]
    seen[id(thing)] = thing
    thing = getattr(thing, "__wrapped__", thing)
    if isinstance(thing, classmethod | staticmethod):
        thing = thing.__func__
    thing = getattr(thing, "__func__", thing)
    if isinstance(thing, property):
        return any(_needs_server(part, seen) for part in (thing.fget, thing.fset) if part is not None)
    name = f"{getattr(thing, '__module__', None)}.{getattr(thing, '__qualname__', None)}"
    if name.startswith(_HEAVY) and not name.startswith(_LIGHT) and name not in _LIGHT_NAMES:
        return True
    if not name.startswith("tests."):
        return False
    if isinstance(thing, FunctionType):
        codes = list(_codes(thing.__code__))
        if any(not _HEAVY_NAMES.isdisjoint(code.co_names) for code in codes):
            return True
        return any(_needs_server(each, seen) for code in codes for each in _named(code, thing.__globals__))
    if isinstance(thing, type):
        return any(_needs_server(each, seen) for each in (*vars(thing).values(), *thing.__bases__))
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and that of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _named(code: CodeType, names: dict[str, Any]) -> Iterator[object]:
    """What the code names of its module, and of modules that are imported there."""
    for name in code.co_names:
        found = names.get(name)
        if isinstance(found, ModuleType):
            yield from (vars(found)[other] for other in code.co_names if other in vars(found))
        else:
            yield found


def keep_files_in_memory() -> None:
    """`tmp_path` and other temporary files in memory, where there is room and nobody chose a place: nothing that quick
    tests write has to survive a power cut, and there are thousands of waits for the disk. Workers inherit it."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _ROOM:
        return
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None  # it is looked for again


class NoServers:
    """While a quick test runs, nothing but Python and small tools is started: what else is, is refused and the test
    fails, also if it hides the error."""

    def __init__(self) -> None:
        self._test = ""
        self.started: list[str] = []
        sys.addaudithook(self._audit)

    def begin(self, test: str) -> None:
        self._test, self.started = test, []

    def end(self) -> None:
        self._test = ""

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "subprocess.Popen" or not self._test:
            return
        executable, command = arguments[0], [os.fspath(each) for each in arguments[1]]
        program = os.path.basename(os.fspath(executable))
        small = program.startswith("python") or program in _TOOLS or command[1:] in (["--version"], ["-version"])
        if small and not any(str(word).startswith("tidemill.lab") for word in command):
            return
        self.started.append(program)
        raise AssertionError(complaint([program]))


def complaint(programs: list[str]) -> str:
    return (
        f"a quick test starts {', '.join(programs)}: start the server in a fixture or a helper whose code names it, "
        "or mark the test `slow`"
    )
