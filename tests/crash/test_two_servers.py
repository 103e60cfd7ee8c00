"""Two `tidemill serve` on one state store: one runs the pipeline, the other takes it over, nothing is lost or mixed up.

The servers share PostgreSQL as state store and the state directory; each reaches the store through a proxy that can
fall silent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import orjson
import psycopg
import pytest

from tests.crash.actors import command_of, descendants, wait_for
from tests.delivery.proxy import Proxy
from tests.support.other_hosts import other_hosts
from tests.support.seed import WHOLE, dice
from tidemill.api.client import ServerClient
from tidemill.errors import ServerError
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.process import free_port
from tidemill.lab.servers.virtual_host import VirtualHost
from tidemill.service.server.tokens import Role, open_tokens

LEASE_SECONDS = 6
# A namespace of processes. Its first process is a shell: that one could not be stopped by itself.
ELSEWHERE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@" & wait $!', "sh")

DOCUMENT = """
metadata: {name: orders}
spec:
  source: {type: postgres, config: {id: two-servers, dsn: "DSN", tables: [public.orders], slot: two_servers}}
  sinks: [{type: files, config: {id: lake, path: "LAKE"}}]
"""


class ServerProcess:
    """One `tidemill serve`; `log` is what it has said. `elsewhere`: its processes are not those of this machine, for
    whoever looks, so that nobody can see whether it lives, or end it."""

    def __init__(
        self,
        directory: Path,
        name: str,
        state: str,
        *,
        elsewhere: bool = False,
        environment: dict[str, str] | None = None,
        options: Sequence[str] = ("--metrics", "none"),
        host: VirtualHost | None = None,
        token: str = "",
    ) -> None:
        """On another `host` it needs a `token`: what is not on loopback asks for one."""
        self.log = directory / f"{name}.log"
        api = f"{host.far if host is not None else '127.0.0.1'}:{free_port()}"
        given = [
            "serve", "--config", str(directory / "orders.yaml"), "--state-dir", str(directory / "state"),
            "--state", state, "--api", api, "--grpc", "none", "--auth", "token" if token else "none",
            "--lease-seconds", str(LEASE_SECONDS), "--drain", "5", *options,
        ]  # fmt: skip
        where = (*(host.enter if host is not None else ()), *(ELSEWHERE if elsewhere else ()))
        command = [*where, sys.executable, "-c", f"from tidemill.cli.main import main; main({given!r})"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | (environment or {}),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory, start_new_session=True,
            )  # fmt: skip
        self.client = ServerClient(f"http://{api}", token or None, timeout=10)
        self.patient = ServerClient(f"http://{api}", token or None)  # a resume may have to start Spark first

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def shows(self, *states: str) -> bool:
        try:
            return self.client.pipeline("orders").status in states
        except ServerError:
            return False

    def status(self) -> dict[str, Any]:
        return self.client.status("orders")

    def streams(self) -> bool:
        return self.shows("running") and bool(self.status()["began"])

    def signal_all(self, number: signal.Signals) -> None:
        """To the server and all it started, as a frozen container is frozen."""
        os.killpg(self.process.pid, number)

    def last_lines(self) -> str:
        return self.log.read_text()[-4000:]

    def end(self) -> None:
        if self.alive:
            self.process.kill()
        self.process.wait()


class TrickleWriter:
    """Inserts rows all the time, as an application does that knows nothing of servers."""

    def __init__(self, dsn: str) -> None:
        self._dsn, self.rows = dsn, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TrickleWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as db:
            while not self._stop.wait(0.05):
                db.execute(
                    "INSERT INTO orders SELECT n, 'x' FROM generate_series(%s::int, %s::int) n",
                    [self.rows + 1, self.rows + 5],
                )
                self.rows += 5


@contextmanager
def server(directory: Path, name: str, state: str, **how: Any) -> Iterator[ServerProcess]:
    made = ServerProcess(directory, name, state, **how)
    try:
        yield made
    finally:
        made.end()


def delivered(lake: Path) -> list[int]:
    """In the order of the files' offsets."""
    files = sorted(lake.rglob("*.jsonl*"))
    return [orjson.loads(line)["after"]["id"] for file in files for line in file.read_bytes().splitlines()]


FAULTS = ("kill", "freeze", "partition")


@pytest.mark.slow
def test_a_pipeline_runs_once_and_is_taken_over_without_a_loss(tmp_path: Path, postgres18: Postgres) -> None:
    """One fault of three, as the seed chooses; `make crash` tries all, each on the server that took over before."""
    lake = tmp_path / "lake"
    with postgres18.database("two_servers") as dsn, ExitStack() as stack:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        document = DOCUMENT.replace("DSN", dsn).replace("LAKE", str(lake))
        (tmp_path / "orders.yaml").write_text(document)
        names = iter(range(1, 10))

        def start() -> tuple[ServerProcess, Proxy]:
            """Each server reaches the state store through a proxy of its own."""
            proxy = stack.enter_context(Proxy(postgres18.port))
            state = dsn.replace(f":{postgres18.port}/", f":{proxy.port}/")
            assert state != dsn
            return stack.enter_context(server(tmp_path, f"server-{next(names)}", state)), proxy

        holder, proxy = start()
        wait_for(holder.streams, 180, holder.last_lines)
        assert holder.status()["lease"]["here"]
        writer = stack.enter_context(TrickleWriter(dsn))
        for epoch, fault in enumerate(FAULTS if WHOLE else [dice("two servers").choice(FAULTS)], 2):
            successor, next_proxy = start()
            _let_take_over(holder, proxy, successor, lake, fault)
            lease = successor.status()["lease"]
            assert (lease["epoch"], lease["here"]) == (epoch, True), fault
            holder, proxy = successor, next_proxy

        writer.__exit__()
        wait_for(lambda: max(delivered(lake), default=0) == writer.rows, 180, holder.last_lines)
        found = delivered(lake)
        assert sorted(set(found)) == list(range(1, writer.rows + 1)), "rows are missing"
        assert {row: count for row, count in Counter(found).items() if count > 1} == {}
        assert found == sorted(found), "the order of the source"
        holder.process.terminate()
        holder.process.wait(120)


def _let_take_over(holder: ServerProcess, proxy: Proxy, successor: ServerProcess, lake: Path, fault: str) -> None:
    wait_for(lambda: successor.shows("standby"), 180, successor.last_lines)
    assert successor.status()["lease"] == {**holder.status()["lease"], "here": False}
    known = len(delivered(lake))
    wait_for(lambda: len(delivered(lake)) > known, 180, holder.last_lines)
    match fault:
        case "kill":
            holder.process.kill()
        case "freeze":
            holder.signal_all(signal.SIGSTOP)
        case _:
            proxy.hold()
    wait_for(successor.streams, 180, successor.last_lines)
    with suppress(ProcessLookupError):
        holder.signal_all(signal.SIGCONT)
    proxy.release()
    wait_for(lambda: not holder.alive or holder.shows("standby"), 180, holder.last_lines)


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_taken_over_within_seconds_and_writes_nothing_more(
    tmp_path: Path, postgres18: Postgres
) -> None:
    """Each server is on a host of its own. The first one loses store, source and everybody else at once, and nobody is
    told: the database goes on believing that its reader is there."""
    lake = tmp_path / "lake"
    with postgres18.database("partition") as dsn, other_hosts(2) as hosts, ExitStack() as stack:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        proxy = stack.enter_context(Proxy(postgres18.port, hosts[1].near))
        near = dsn.replace(f"127.0.0.1:{postgres18.port}", f"{hosts[1].near}:{proxy.port}")
        assert near != dsn
        document = DOCUMENT.replace("DSN", near).replace("LAKE", str(lake)).replace("two_servers", "partition")
        (tmp_path / "orders.yaml").write_text(document)
        with open_tokens(near, create=True) as tokens:
            token = tokens.create("ann", Role.ADMIN)[0]

        def start(number: int) -> ServerProcess:
            made = ServerProcess(tmp_path, f"server-{number}", near, elsewhere=True, host=hosts[number], token=token)
            stack.callback(made.end)
            return made

        first = start(0)
        wait_for(first.streams, 180, first.last_lines)
        second = start(1)
        wait_for(lambda: second.shows("standby"), 180, second.last_lines)
        writer = stack.enter_context(TrickleWriter(dsn))
        wait_for(lambda: len(delivered(lake)) > 0, 180, first.last_lines)
        hosts[0].cut()
        wait_for(second.streams, 50, second.last_lines)  # less than wal_sender_timeout
        assert second.status()["lease"]["epoch"] == 2
        known = len(delivered(lake))
        wait_for(lambda: len(delivered(lake)) > known, 60, second.last_lines)
        hosts[0].join()
        wait_for(lambda: not first.alive or first.shows("standby"), 180, first.last_lines)
        writer.__exit__()
        wait_for(lambda: max(delivered(lake), default=0) == writer.rows, 180, second.last_lines)
        assert delivered(lake) == list(range(1, writer.rows + 1)), "all of them, once, in the order of the source"


@pytest.mark.slow
def test_a_server_keeps_its_workers_running_and_they_end_with_it(tmp_path: Path, postgres18: Postgres) -> None:
    """A worker is killed, one is frozen, the server is killed, the next goes on: nothing is lost or mixed up."""
    lake, metrics = tmp_path / "lake", f"127.0.0.1:{free_port()}"
    options = ("--dispatch", "process", "--metrics", metrics)
    with postgres18.database("dispatched") as dsn, ExitStack() as stack:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        document = DOCUMENT.replace("DSN", dsn).replace("LAKE", str(lake)).replace("two_servers", "dispatched")
        (tmp_path / "orders.yaml").write_text(document + "  pause: {capture: true}\n")
        first = stack.enter_context(server(tmp_path, "server-1", dsn, options=options))
        wait_for(first.streams, 180, first.last_lines)
        writer = stack.enter_context(TrickleWriter(dsn))
        [worker] = [pid for pid in descendants(first.process.pid) if "tidemill worker" in command_of(pid)]
        assert first.status()["lease"]["holder"].endswith(f"pid {worker}")
        assert not first.status()["lease"]["here"]
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: first.streams() and first.status()["lease"]["epoch"] == 2, 180, first.last_lines)
        [worker] = [pid for pid in descendants(first.process.pid) if "tidemill worker" in command_of(pid)]
        os.kill(worker, signal.SIGSTOP)
        wait_for(lambda: first.streams() and first.status()["lease"]["epoch"] == 3, 180, first.last_lines)
        assert first.patient.pause("orders").status == "paused"
        known = len(delivered(lake))
        wait_for(lambda: first.status()["lag_events"] > 20, 180, first.last_lines)
        assert len(delivered(lake)) == known, "delivered in the pause"
        with urlopen(f"http://{metrics}/metrics", timeout=60) as answer:
            assert b'tidemill_lease_held{pipeline="orders"} 1.0' in answer.read(), "the worker's, at the server's port"
        first.process.kill()
        second = stack.enter_context(server(tmp_path, "server-2", dsn, options=options))
        wait_for(lambda: second.shows("paused") and second.status()["lease"]["epoch"] == 4, 180, second.last_lines)
        second.patient.resume("orders")
        writer.__exit__()
        wait_for(lambda: max(delivered(lake), default=0) == writer.rows, 180, second.last_lines)
        found = delivered(lake)
        assert found == list(range(1, writer.rows + 1)), "all of them, once, in the order of the source"
        workers = [pid for pid in descendants(second.process.pid) if "tidemill worker" in command_of(pid)]
        second.process.terminate()
        assert second.process.wait(180) == 0
        assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == [], "a clean stop ends the worker first"
