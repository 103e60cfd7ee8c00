"""The servers that examples and pipelines talk to, on loopback and without containers: `make up | ps | logs | down`.

Each server has a keeper: a process of its own that starts it, notes where it is in a file of the folder `--at`, and
ends it on SIGTERM. `down` ends the keepers that are noted, by pid and the time of their start, and nothing else. Data
lives in that folder for as long as the server does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from tidemill.cli import terminal
from tidemill.disk.replace import replace_file
from tidemill.errors import TidemillError, UsageError
from tidemill.service.lease.lease_process import LeaseProcess

_START_SECONDS, _STOP_SECONDS = 180.0, 60.0
_CACHE = Path(".services")  # what `make services` fetched

app = terminal.commands("Servers on loopback for examples: up, ps, logs, down.")
Names = Annotated[list[str] | None, typer.Argument(help="Which servers; all by default.", show_default=False)]
At = Annotated[Path, typer.Option("--at", help="Where they are noted and keep their data.")]
_AT = Path("build") / "stack"
_NOTHING_UP = "Nothing is up. `make up` starts all servers, `make up ARGS=postgres` one of them."


@dataclass(frozen=True, slots=True)
class StartedServer:
    """`variables` are what the examples call its address."""

    pid: int
    variables: dict[str, str]
    log: Path | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class KeptServer:
    """As it is noted: the keeper, the server that it started, and where that is."""

    name: str
    keeper: LeaseProcess
    server: LeaseProcess
    variables: dict[str, str]
    log: str
    note: str

    @classmethod
    def read(cls, at: Path, name: str) -> KeptServer | None:
        try:
            found: dict[str, Any] = orjson.loads((at / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None
        keeper, server = (LeaseProcess(**found.pop(field)) for field in ("keeper", "server"))
        return cls(keeper=keeper, server=server, **found)

    @property
    def state(self) -> str:
        if not self.server.is_gone:
            return "up" if not self.keeper.is_gone else "up, without its keeper"
        return "gone"


@app.command()
def up(names: Names = None, at: At = _AT, as_json: terminal.AsJson = False) -> None:
    """Start servers that are not up yet; print what examples need to reach them."""
    chosen, at = _choose(names), at.absolute()
    keepers = {name: _start_keeper(at, name) for name in chosen if not _is_up(KeptServer.read(at, name))}
    if keepers:
        terminal.progress(f"starting {', '.join(keepers)} …")
    failed = {name: problem for name, keeper in keepers.items() if (problem := _wait(at, name, keeper))}
    found = [each for name in chosen if (each := KeptServer.read(at, name)) is not None]
    if as_json:
        servers = {each.name: each.variables for each in found}
        terminal.show_json({"servers": servers, "failed": failed})
    else:
        for each in found:
            for variable, value in each.variables.items():
                terminal.say_line(f"export {variable}='{value}'" + (f"   # {each.note}" if each.note else ""))
        for name, problem in failed.items():
            terminal.warn(f"{name} is not up: {problem}")
    if failed:
        raise typer.Exit(3)


@app.command()
def ps(names: Names = None, at: At = _AT, as_json: terminal.AsJson = False) -> None:
    """List the servers that are up."""
    found = [each for name in _choose(names) if (each := KeptServer.read(at, name)) is not None]
    if as_json:
        terminal.show_json([{"name": each.name, "state": each.state, "pid": each.server.pid, "log": each.log,
                             "variables": each.variables} for each in found])  # fmt: skip
        return
    terminal.show_table(
        ("server", "state", "pid", "address"),
        [(each.name, each.state, str(each.server.pid), " ".join(each.variables.values())) for each in found],
        empty=_NOTHING_UP,
    )


@app.command()
def logs(
    names: Names = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of each, the last ones.")] = 20,
    at: At = _AT,
    as_json: terminal.AsJson = False,
) -> None:
    """Print the end of what servers wrote to their logs."""
    said: dict[str, list[str]] = {}
    for name in _choose(names):
        kept = KeptServer.read(at, name)
        files = [Path(kept.log)] if kept is not None and kept.log else []
        files.append(at / f"{name}.out")
        found = [each.read_text(errors="replace").splitlines() for each in files if each.is_file()]
        if found:
            said[name] = [line for text in found for line in text][-lines:]
    if as_json:
        terminal.show_json(said)
        return
    for name, text in said.items():
        for line in text:
            terminal.say_line(f"{name} | {line}")
    if not said:
        terminal.say(_NOTHING_UP)


@app.command()
def down(names: Names = None, at: At = _AT, as_json: terminal.AsJson = False) -> None:
    """End the servers that `up` started, and remove their data."""
    ended = []
    for name in _choose(names):
        kept = KeptServer.read(at, name)
        if kept is not None:
            _end(kept)
            ended.append(name)
        _forget(at, name)
    if as_json:
        terminal.show_json({"ended": ended})
    else:
        terminal.say(f"ended: {', '.join(ended)}" if ended else "Nothing was up.")


@app.command(hidden=True)
def keep(name: str, at: At = _AT, as_json: terminal.AsJson = False) -> None:
    """Run one server until SIGTERM; what `up` starts."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with SERVERS[name]() as started:
        kept = KeptServer(
            name, LeaseProcess.own(), LeaseProcess.of(started.pid), started.variables, str(started.log or ""),
            started.note,
        )  # fmt: skip
        replace_file(at / f"{name}.json", orjson.dumps(asdict(kept)))
        while not ended.wait(1.0) and not kept.server.is_gone:
            pass


# ---------------------------------------------------------------- keepers


def _choose(names: Sequence[str] | None) -> list[str]:
    unknown = sorted(set(names or ()) - SERVERS.keys())
    if unknown:
        raise UsageError(f'there is no server "{unknown[0]}"', where="make up", fix=f"There are: {', '.join(SERVERS)}.")
    return [name for name in SERVERS if not names or name in names]


def _is_up(kept: KeptServer | None) -> bool:
    return kept is not None and not kept.keeper.is_gone and not kept.server.is_gone


def _start_keeper(at: Path, name: str) -> subprocess.Popen[bytes]:
    if (left := KeptServer.read(at, name)) is not None:
        _end(left)
    _forget(at, name)
    (at / name).mkdir(parents=True)
    command = [sys.executable, "-m", "tidemill.lab.stack", "keep", name, "--at", str(at)]
    with (at / f"{name}.out").open("wb") as out:
        # Servers make their folders where temporary files go.
        environment = {**os.environ, "TMPDIR": str(at / name)}
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=environment
        )


def _wait(at: Path, name: str, keeper: subprocess.Popen[bytes]) -> str:
    """Empty once the server is up; else what its keeper said."""
    until = time.monotonic() + _START_SECONDS
    while not (at / f"{name}.json").exists():
        if keeper.poll() is not None or time.monotonic() > until:
            keeper.terminate()
            keeper.wait(_STOP_SECONDS)
            said = (at / f"{name}.out").read_text(errors="replace").strip().splitlines()
            return " ".join(line.strip() for line in said[-4:]) or "its keeper ended"
        time.sleep(0.05)
    return ""


def _end(kept: KeptServer) -> None:
    """The keeper ends its server in order; a server whose keeper was killed is ended by its pid."""
    if not kept.keeper.is_gone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(kept.keeper.pid, signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        while not kept.keeper.is_gone:
            if time.monotonic() > until:
                kept.keeper.end()
            time.sleep(0.05)
    if not kept.server.is_gone:
        kept.server.end()


def _forget(at: Path, name: str) -> None:
    for file in (f"{name}.json", f"{name}.out"):
        (at / file).unlink(missing_ok=True)
    shutil.rmtree(at / name, ignore_errors=True)


# ---------------------------------------------------------------- servers


@contextmanager
def _postgres() -> Iterator[StartedServer]:
    from tidemill.lab.servers.postgres import Postgres

    with Postgres() as server:
        assert server.pid is not None
        shop, copy = server.create_database("shop"), server.create_database("copy")
        yield StartedServer(server.pid, {"SHOP_DSN": shop, "COPY_DSN": copy, "QUEUE_DSN": copy}, server.log)


@contextmanager
def _mysql() -> Iterator[StartedServer]:
    from tidemill.lab.servers.mysql import Mysql, fetch

    with Mysql(fetch(_CACHE / "mysql")) as server:
        server.query("CREATE DATABASE shop")
        assert server.pid is not None
        yield StartedServer(server.pid, {"MYSQL_DSN": server.dsn("shop")}, server.log)


@contextmanager
def _mariadb() -> Iterator[StartedServer]:
    from tidemill.lab.servers.mariadb import Mariadb

    with Mariadb() as server:
        server.query("CREATE DATABASE shop")
        assert server.pid is not None
        yield StartedServer(server.pid, {"MARIADB_DSN": server.dsn("shop")}, server.log,
                            "for examples of MariaDB: MYSQL_DSN=$MARIADB_DSN")  # fmt: skip


@contextmanager
def _kafka() -> Iterator[StartedServer]:
    import tempfile

    from tidemill.lab.servers.kafka import local_kafka

    directory = Path(tempfile.mkdtemp(prefix="tidemill-kafka-"))
    with local_kafka(directory, (_CACHE / "kafka").absolute()) as server:
        log = directory / "broker.log"
        variables = {"KAFKA_BROKERS": server.bootstrap}
        yield StartedServer(server.pid, variables, log if log.exists() else None, server.label)


@contextmanager
def _redis() -> Iterator[StartedServer]:
    from tidemill.lab.servers.valkey import Valkey

    with Valkey() as server:
        yield StartedServer(server.pid, {"REDIS_URI": server.uri}, server.log)


@contextmanager
def _s3() -> Iterator[StartedServer]:
    from tidemill.lab.servers.seaweedfs import SeaweedFS

    with SeaweedFS() as server:
        variables = {
            "BUCKET": server.bucket("lake"), "AWS_ENDPOINT_URL": server.endpoint, "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key,
        }  # fmt: skip
        yield StartedServer(server.pid, variables, server.log)


@contextmanager
def _nats() -> Iterator[StartedServer]:
    from tidemill.lab.servers.nats import Nats

    with Nats() as server:
        yield StartedServer(server.pid, {"NATS_URL": server.uri}, server.log)


@contextmanager
def _clickhouse() -> Iterator[StartedServer]:
    from tidemill.lab.servers.clickhouse_standin import ClickHouse

    with ClickHouse() as server:
        yield StartedServer(server.pid, {"CLICKHOUSE_URL": server.url}, server.log, "a stand-in over chdb's engine")


SERVERS: dict[str, Callable[[], AbstractContextManager[StartedServer]]] = {
    "postgres": _postgres, "mysql": _mysql, "mariadb": _mariadb, "kafka": _kafka, "redis": _redis, "s3": _s3,
    "nats": _nats, "clickhouse": _clickhouse,
}  # fmt: skip


def main() -> None:
    try:
        app(prog_name="stack")
    except TidemillError as error:
        terminal.show_error(error, as_json="--json" in sys.argv)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
