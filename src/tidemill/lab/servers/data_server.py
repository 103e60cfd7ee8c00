"""What private databases have in common: a data directory, a port on 127.0.0.1, one process that may be killed."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.process import free_port


class DataServer(ABC):
    """`start` after `stop` or `kill` goes on with the same data and the same port. `directory` is created and, unless
    it was there before, removed by `close`."""

    name: ClassVar[str]
    start_seconds: ClassVar[float] = 60.0

    def __init__(self, directory: Path | None) -> None:
        self.port = 0
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"tidemill-{self.name.lower()}-"))
        self._keep = directory is not None and directory.exists()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def close(self) -> None:
        """Stops the server and removes what it wrote."""

    @abstractmethod
    def _is_initialized(self) -> bool: ...

    @abstractmethod
    def _initialize(self) -> None:
        """Makes the data directory."""

    @abstractmethod
    def _launch(self, timeout: float) -> bool:
        """Whether it took connections within so many seconds; gone if not."""

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """The server's own log, for when something needs explaining."""
        return self.directory / "server.log"

    @property
    def ca(self) -> Path:
        """Certificate of the authority that signed the server's (`ssl=True`): what `sslrootcert` wants."""
        return self.directory / "tls" / "ca.crt"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float | None = None) -> Self:
        """Returns once the server takes connections. Does nothing if it already runs."""
        if self.running:
            return self
        if not self._is_initialized():
            self._initialize()
        for _ in range(5):
            new_port = self.port == 0
            self.port = self.port or free_port()
            if self._launch(timeout or self.start_seconds):
                return self
            if not new_port or "already in use" not in self._last_lines():
                break
            self.port = 0  # someone was faster to take it
        raise EnvironmentProblem(f"{self.name} did not start", where=str(self.log), fix=self._last_lines())

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _last_lines(self, count: int = 8) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        return ""
