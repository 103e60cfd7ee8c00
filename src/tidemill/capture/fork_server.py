"""The fork server of `tidemill serve`: a process that has loaded everything, and forks the capture processes.

A capture process that starts by itself takes a second of a core and 130 MB for what it imports; forked, it has that at
once, and shares the memory with all others. `service/run/capture_fork_server.py` is the other end.

    request    the environment as JSON, with the descriptors of standard input, of standard error, and of the exit
    exit       the number of the new process (8 bytes), and its exit code when it has ended (4 bytes)

It has one thread, which does nothing but fork and wait. When the server is gone it waits for its children, which end
because their standard input was closed, and ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import random
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector

import orjson

PID, CODE = struct.Struct("<q"), struct.Struct("<i")
LONGEST_REQUEST = 1 << 17
_PR_SET_PDEATHSIG = 1
_LOADED = ("sqlite", "postgres", "mysql")


def main() -> None:
    preload()
    capture = importlib.import_module("tidemill.capture.__main__")
    ForkServer(socket.socket(fileno=os.dup(0)), capture.main).run()


def preload() -> None:
    """Loads what every capture needs, and starts no thread. The first kernel that numba loads makes it build its tables
    of types and start LLVM: 30 MB, which each child had to itself where only modules were imported."""
    # Before Arrow is loaded, which would start a thread that tidies up after an allocator that nobody uses here, and
    # numpy, which would start one for each core.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    importlib.import_module("tidemill.capture.__main__")
    for source in _LOADED:
        with suppress(ImportError):  # a driver that is not installed is loaded by whoever needs it, and says so
            importlib.import_module(f"tidemill.sources.{source}")
    importlib.import_module("tidemill.model.keyhash").warm_up()
    gc.collect()
    gc.freeze()  # a collection in a child would write to the pages that all share


class ForkServer:
    def __init__(self, requests: socket.socket, task: object) -> None:
        self._requests, self._task = requests, task
        self._children: dict[int, int] = {}  # the descriptor of each one's exit
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # meant for the server, which sees to its children
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake)
        with DefaultSelector() as selector:
            selector.register(self._requests, EVENT_READ)
            selector.register(self._woken, EVENT_READ)
            hears = True
            while hears or self._children:
                for key, _ in selector.select(1.0):
                    if key.fileobj is self._requests and not self._take():
                        hears = False
                        selector.unregister(self._requests)
                    elif key.fileobj == self._woken:
                        os.read(self._woken, 4096)
                self._reap()

    def _take(self) -> bool:
        """False if the server is gone."""
        content, descriptors, _, _ = socket.recv_fds(self._requests, LONGEST_REQUEST, 3)
        if not content:
            return False
        child = os.fork()
        if not child:
            self._live(orjson.loads(content), descriptors)
        standard_input, said, exit_end = descriptors
        os.close(standard_input)
        os.close(said)
        self._children[child] = exit_end
        os.write(exit_end, PID.pack(child))
        return True

    def _live(self, environment: dict[str, str], descriptors: list[int]) -> None:
        """In the child; does not return."""
        code = 1
        try:
            parent = os.getppid()
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # else nobody would hear of our end
            if os.getppid() != parent:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            standard_input, said, _ = descriptors
            for target, descriptor in ((0, standard_input), (1, said), (2, said)):
                os.dup2(descriptor, target)
            for each in {*descriptors, *self._children.values(), self._woken, self._wake, self._requests.fileno()}:
                os.close(each)
            os.environ.clear()
            os.environ.update(environment)
            random.seed()
            code = self._task()  # type: ignore[operator]
        except BaseException:  # noqa: BLE001  nothing of the fork server may go on in the child
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            exit_end = self._children.pop(child)
            with suppress(BrokenPipeError):  # nobody waits for it any more
                os.write(exit_end, CODE.pack(os.waitstatus_to_exitcode(status)))
            os.close(exit_end)


if __name__ == "__main__":
    main()
