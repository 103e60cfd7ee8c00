"""A V8 engine in a process of its own, and the limits that hold it. One per worker and processor, kept between batches.

Why a process: a script that exhausts V8's heap ends the process that it runs in, some of its memory is counted by
nobody but the operating system, and a worker must survive both. Ending a process also ends any loop (ADR 29).
"""

from __future__ import annotations

import json
import os
import selectors
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.errors import EnvironmentProblem

_HEAD = struct.Struct("<QQQ")
_HERE = Path(__file__).parent
_STARTING_SECONDS = 60.0
_LOADING = 10  # calls' time and CPU: a script is compiled once, with the libraries that it brings
_LOOK_SECONDS = 0.02
BROKEN = "it replaces {}, which events are read and written with"


class LimitExceeded(Exception):
    """`limit` is the option's name, "" where the engine ended by itself; `detail` has no values of rows."""

    def __init__(self, limit: str, detail: str) -> None:
        super().__init__(detail)
        self.limit = limit
        self.detail = detail


class EngineBroken(Exception):
    """The script changed V8 so that what it returns cannot be read."""


class ScriptFailed(Exception):
    """The script as a whole: it does not parse, or its top level throws. The message is V8's."""


@dataclass(frozen=True, slots=True)
class Answer:
    head: dict[str, Any]
    data: bytes
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class _Allowance:
    """What one request to the process may use."""

    cpu_seconds: float
    seconds: float

    def times(self, count: int) -> _Allowance:
        return _Allowance(count * self.cpu_seconds, count * self.seconds)


class Engine:
    """Started on the first call. After any error it is closed, and the next call starts a new one."""

    def __init__(self, script: str, options: dict[str, Any], *, cpu_ms: int, timeout_ms: int, mem_mb: int) -> None:
        self._script, self._options = script, options
        self._call, self._mem_mb = _Allowance(cpu_ms / 1000, timeout_ms / 1000), mem_mb
        self._process: subprocess.Popen[bytes] | None = None
        self.measure = False
        """Whether each answer says how large the heap is, which costs a few hundred microseconds."""
        self.found = False
        self.v8 = ""

    def start(self) -> None:
        """Loads the script, which may take as long as ten calls of it. `ScriptFailed`, `LimitExceeded`."""
        if self._process is not None:
            return
        try:
            import py_mini_racer  # noqa: F401  only whether it is there
        except ImportError as error:
            raise EnvironmentProblem(
                "mini-racer is not installed", where="processor of type javascript",
                fix="pip install 'tidemill[javascript]'",
            ) from error  # fmt: skip
        command = [sys.executable, "-I", str(_HERE / "sandbox.py"), json.dumps([p for p in sys.path if p])]
        # No environment: it may hold secrets. UTC, so that local times of a script are the same on every machine.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, cwd="/",
            env={"TZ": "UTC", "LC_ALL": "C.UTF-8"}, close_fds=True, start_new_session=True,
        )  # fmt: skip
        prepare = {
            "do": "prepare", "prelude": (_HERE / "prelude.js").read_text("utf-8"), "options": self._options,
            "mem_mb": self._mem_mb,
        }  # fmt: skip
        self._ask(prepare, b"", b"", _Allowance(_STARTING_SECONDS, _STARTING_SECONDS))
        load = {"do": "load", "script": self._script, "name": self._options["script"]}
        answer = self._ask(load, b"", b"", self._call.times(_LOADING))
        if answer.head["broken"]:
            self.close()
            raise ScriptFailed(BROKEN.format(answer.head["broken"]))
        self.found, self.v8 = answer.head["found"], answer.head["v8"]

    def run(self, head: dict[str, Any], arena: bytes | memoryview, text: bytes | memoryview) -> Answer:
        self.start()
        answer = self._ask({"do": "run", "run": json.dumps(head), "measure": self.measure}, arena, text, self._call)
        if broken := answer.head.get("broken"):
            self.close()
            raise EngineBroken(BROKEN.format(broken))
        return answer

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def __del__(self) -> None:
        """Ends the process of an engine that nobody closed."""
        self.close()

    def _ask(
        self, head: dict[str, Any], arena: bytes | memoryview, text: bytes | memoryview, allowed: _Allowance
    ) -> Answer:
        assert self._process is not None
        began, cpu = time.monotonic(), self._read_usage()
        try:
            packed = json.dumps(head).encode()
            self._send((_HEAD.pack(len(packed), len(arena), len(text)), packed, arena, text))
            sizes = _HEAD.unpack(self._receive(_HEAD.size, began, cpu, allowed))
            whole = self._receive(sizes[0] + sizes[1], began, cpu, allowed)
        except (LimitExceeded, OSError) as error:
            self.close()
            if isinstance(error, OSError):
                raise LimitExceeded("", "the engine ended") from error
            raise
        answer = json.loads(whole[: sizes[0]])
        spent = self._read_usage() - cpu
        if "ok" in answer:
            return Answer(answer["ok"], whole[sizes[0] :], time.monotonic() - began, spent)
        self.close()
        if answer["error"] == "memory":
            raise LimitExceeded("mem_mb", f"its heap is larger than {self._mem_mb} MB")
        if answer["error"] == "broken":
            raise EngineBroken(f"the engine gave no answer ({answer['message']})")
        raise ScriptFailed(answer["message"])

    def _send(self, parts: tuple[bytes | memoryview, ...]) -> None:
        """The process always reads, whatever the script does: this does not block for long."""
        assert self._process is not None
        assert self._process.stdin is not None
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[self._process.stdin.write(left) :]

    def _receive(self, size: int, began: float, cpu: float, allowed: _Allowance) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        file, buffer, at = self._process.stdout, bytearray(size), 0
        until = began + allowed.seconds
        with selectors.DefaultSelector() as ready:
            ready.register(file, selectors.EVENT_READ)
            while at < size:
                left = until - time.monotonic()
                if left <= 0:
                    raise LimitExceeded("timeout_ms", f"it ran longer than {round((until - began) * 1000)} ms")
                if not ready.select(min(left, _LOOK_SECONDS)):
                    if self._read_usage() - cpu > allowed.cpu_seconds:
                        limit = round(allowed.cpu_seconds * 1000)
                        raise LimitExceeded("cpu_ms", f"it used more than {limit} ms of CPU time")
                    continue
                got = os.read(file.fileno(), min(size - at, 1 << 20))
                if not got:
                    raise LimitExceeded(*self._end())
                buffer[at : at + len(got)] = got
                at += len(got)
        return bytes(buffer)

    def _read_usage(self) -> float:
        """CPU seconds of the process, all of its threads: V8 collects garbage beside the script."""
        assert self._process is not None
        try:
            return time.clock_gettime(~self._process.pid << 3 | 2)  # Linux: the CPU clock of another process
        except OSError:
            return 0.0

    def _end(self) -> tuple[str, str]:
        """How the process ended. V8 has no other way to say that memory is exhausted."""
        assert self._process is not None
        code = self._process.wait()
        if code in (70, -4, -5, -6, -11):  # MemoryError, or V8 trapped, aborted or met memory that it was not given
            return "mem_mb", f"it needed more than {self._mem_mb} MB"
        return "", f"the engine ended with code {code}"
