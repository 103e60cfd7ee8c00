"""What a private MySQL and a private MariaDB have in common: a data directory, a port on 127.0.0.1, one process.

with Mariadb() as server:
    server.query("CREATE TABLE shop.t (id int PRIMARY KEY)")
    connect(server.dsn("shop"))
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import pymysql

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers import tls
from tidemill.lab.servers.data_server import DataServer

Setting = str | int | bool

_DEFAULTS: dict[str, Setting] = {
    "server_id": 1,
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_metadata": "FULL",
    "bind_address": "127.0.0.1",
    "socket": "mysqld.sock",  # relative to the data directory: a socket's path may be at most 107 bytes long
    "innodb_buffer_pool_size": "64M",
    "local_infile": True,
    "sql_mode": "",  # tests store zero dates and the like
    "secure_file_priv": "",
}
_UNSAFE_BUT_FAST: dict[str, Setting] = {"innodb_flush_log_at_trx_commit": 2, "sync_binlog": 0}
# The first login comes over TCP, and the accounts that a new data directory has may not match it.
_FIRST = """SET sql_log_bin = 0;
CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';
GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
"""


class Server(DataServer):
    """One server. `settings` are its own options with underscores. `durable=False` syncs less: a killed server still
    recovers, a machine that loses power does not. With `ssl` it has certificates of a private authority, `ca`.
    """

    start_seconds: ClassVar[float] = 90.0

    def __init__(
        self, *, directory: Path | None = None, ssl: bool = False, durable: bool = False, **settings: Setting
    ) -> None:
        super().__init__(directory)
        self._ssl = ssl
        self._settings = _DEFAULTS | self.flavor_settings() | ({} if durable else _UNSAFE_BUT_FAST) | settings

    def flavor_settings(self) -> dict[str, Setting]:
        """Settings that only this server has."""
        raise NotImplementedError

    def initialize(self, data: Path) -> Sequence[str | Path]:
        """The command that makes an empty data directory."""
        raise NotImplementedError

    def command(self) -> Sequence[str | Path]:
        """The server's binary and what it needs to find its own files."""
        raise NotImplementedError

    @property
    def version(self) -> str:
        return str(self.query("SELECT VERSION()")[0][0])

    def stop(self, timeout: float = 60) -> None:
        """An orderly shutdown; killed if that takes too long."""
        if self._process is None or not self.running:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would have it. The server is one process."""
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait()

    def restart(self, **settings: Setting) -> None:
        """Stops and starts; `settings` hold from then on."""
        self._settings |= settings
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops the server and removes what it wrote."""
        self.kill() if not self._keep else self.stop()
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def dsn(self, database: str = "", user: str = "root", password: str = "", **options: str) -> str:
        login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        tail = f"?{urlencode(options)}" if options else ""
        return f"mysql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}{tail}"

    def connect(self, database: str = "", user: str = "root", password: str = "", **options: Any) -> Any:
        """A PyMySQL connection in autocommit, without TLS."""
        given: dict[str, Any] = {"autocommit": True, "ssl_disabled": True, "charset": "utf8mb4"} | options
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=user, password=password, database=database or None, **given
        )

    def query(
        self, statement: str, params: Sequence[Any] | None = None, *, database: str = ""
    ) -> list[tuple[Any, ...]]:
        """Runs in its own connection; rows if the statement has any."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement, params)
            return list(cursor.fetchall())

    def execute(self, *statements: str, database: str = "") -> None:
        """Several statements in one connection."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator[str]:
        """An empty database; its DSN. Dropped afterwards."""
        self.query(f"CREATE DATABASE `{name}`")
        try:
            yield self.dsn(name)
        finally:
            if not self.running:
                self.start()
            self.query(f"DROP DATABASE IF EXISTS `{name}`")

    def fill(self, data: Path) -> None:
        """Makes an empty data directory."""
        command = [*map(str, self.initialize(data)), *_as_root()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        if done.returncode:
            shutil.rmtree(data, ignore_errors=True)
            complaint = (done.stdout + done.stderr).strip()[-800:]
            raise EnvironmentProblem(f"{self.name} cannot make a data directory", where=str(data), fix=complaint)

    def _is_initialized(self) -> bool:
        return self.data.exists()

    def _initialize(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.fill(self.data)
        (self.directory / "first.sql").write_text(_FIRST)
        if self._ssl:
            made = tls.make(self.directory / "tls")
            paths = {"ssl_ca": made.ca, "ssl_cert": made.certificate, "ssl_key": made.key}
            self._settings |= {name: str(path) for name, path in paths.items()}

    def _launch(self, timeout: float) -> bool:
        # Its own: a MariaDB that starts removes the temporary tables that it finds, whoever is using them.
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        settings: dict[str, Setting] = {
            "datadir": str(self.data),
            "tmpdir": str(scratch),
            "port": self.port,
            "init_file": str(self.directory / "first.sql"),
        }
        options = [
            f"--{name.replace('_', '-')}={_render(value)}" for name, value in (self._settings | settings).items()
        ]
        # A session of its own keeps a terminal's Ctrl-C from reaching it before we have drained.
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*map(str, self.command()), *options, *_as_root()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))} | {"TZ": "UTC"},
            )  # fmt: skip
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.running:
            with contextlib.suppress(pymysql.err.MySQLError):
                self.connect(connect_timeout=5).close()
                return True
            time.sleep(0.05)
        self.kill()
        return False


def _as_root() -> tuple[str, ...]:
    """Both servers refuse to run as root unless told so; containers and CI often are."""
    return ("--user=root",) if os.geteuid() == 0 else ()


def _render(value: Setting) -> str:
    return ("ON" if value else "OFF") if isinstance(value, bool) else str(value)
