"""What we use of libraries beyond what they promise: one test per library, without a server, so that it fails first.

Each private attribute that the package touches is met here exactly as it is used there. When one of these tests fails,
a library has changed under us: the message names the module that has to follow before the pin may be raised.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import json
import re
import socket
import struct
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tidemill

_PACKAGE = Path(tidemill.__file__).parent
_ROOT = Path(__file__).parent.parent.parent

# Library, and who depends on its insides. Each has an upper pin in pyproject.toml.
DEPENDENTS = {
    "pg8000": "tidemill.sources.postgres.client",
    "pymysql": "tidemill.sources.mysql.client and .stream",
    "psycopg": "tidemill.net.pgsession",
    "redis": "tidemill.sinks.redis.client",
    "nats-py": "tidemill.sinks.nats.client",
    "pyspark": "tidemill.stream.spark.gateway, .session, .daemon and .early",
    "confluent-kafka": "tidemill.sinks.kafka.librdkafka",
    "dbos": "tidemill.service.schedule.run_queue",
}

# Private attributes of foreign objects, per file; the tests below meet each of them.
TOUCHED = {
    "capture/fork_server.py": {"_exit"},  # documented, of os
    "processors/javascript/sandbox.py": {"_exit"},  # documented, of os
    "service/lease/leases.py": {"_exit"},  # documented, of os
    "service/schedule/run_queue.py": {"_recover_pending_workflows"},
    "sources/postgres/client.py": {"_sock", "_usock"},
    "sources/mysql/client.py": {"_sock"},
    "sources/mysql/stream.py": {"_sock", "_force_close", "_execute_command", "_read_packet"},
    "sources/mysql/result.py": {"_sock", "_force_close", "_execute_command", "_read_packet"},
    "sources/mysql/snapshot.py": {"_force_close"},
    "sinks/redis/client.py": {"_sock"},
    "sinks/nats/client.py": {"_transport"},
    "sinks/pgstream/consumer.py": {"_make"},  # documented, of a named tuple
    "stream/spark/class_archive.py": {"_jvm"},
    "stream/spark/daemon.py": {"_exit"},  # documented, of os
    "stream/spark/early/sitecustomize.py": {"_zip_directory_cache"},  # of the standard library's zipimport
    "stream/spark/gateway.py": {"_gateway", "_ensure_initialized"},
    "stream/spark/session.py": {"_active_spark_context", "_gateway", "_instantiatedSession", "_jsc", "_jvm"},
    "stream/trigger/callback.py": {"_gateway", "_gateway_client"},
}


@contextlib.contextmanager
def relied_upon(library: str, what: str) -> Iterator[None]:
    try:
        yield
    except (AssertionError, AttributeError, TypeError, OSError, ImportError, KeyError) as error:
        pytest.fail(
            f"{library} {version(library)} is not what {DEPENDENTS[library]} relies upon: {what} ({error!r}). "
            "Adapt that module before the pin in pyproject.toml is raised."
        )


def test_pg8000_hands_over_its_socket_and_what_it_read_ahead() -> None:
    import pg8000.native

    from tidemill.sources.postgres.client import _take_over

    ours, theirs = socket.socketpair()

    def server() -> None:
        size = struct.unpack(">i", _exactly(theirs, 4))[0]
        startup = _exactly(theirs, size - 4)
        assert b"replication\0database\0" in startup
        ready = _pg_message(b"R", struct.pack(">i", 0)) + _pg_message(b"Z", b"I")
        theirs.sendall(ready + b"sent behind the login")

    with _running(server), relied_upon("pg8000", "Connection(sock=), ._usock, ._sock.peek() and .close()"):
        session = pg8000.native.Connection("user", sock=ours, ssl_context=False, replication="database")
        assert callable(session.execute_simple)
        assert callable(session.register_in_adapter)
        taken, unread = _take_over(session)
        assert taken is ours
        assert unread == b"sent behind the login"
        taken.setblocking(True)
        theirs.sendall(b"the stream")
        assert taken.recv(100) == b"the stream"  # closing its file left the socket open
    ours.close()
    theirs.close()


def test_pymysql_sends_raw_commands_and_lets_its_socket_be_read() -> None:
    import pymysql
    from pymysql.constants import COMMAND

    ours, theirs = socket.socketpair()
    asked: list[bytes] = []

    def server() -> None:
        greeting = b"\x0a8.0.0\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<HBHHB", 0xA205, 45, 2, 8, 21)
        theirs.sendall(_mysql_packet(0, greeting + bytes(10) + b"123456789012\0" + b"mysql_native_password\0"))
        with contextlib.suppress(EOFError):
            while True:
                head = _exactly(theirs, 4)
                asked.append(_exactly(theirs, int.from_bytes(head[:3], "little")))
                if asked[-1][:1] == bytes([COMMAND.COM_BINLOG_DUMP]):
                    theirs.sendall(_mysql_packet(1, b"\0an event"))
                else:
                    theirs.sendall(_mysql_packet(head[3] + 1, b"\0\0\0\x02\0\0\0"))

    what = "._sock, ._execute_command(), ._read_packet().get_all_data() and ._force_close()"
    with _running(server), relied_upon("pymysql", what):
        session = pymysql.connect(user="user", password="", defer_connect=True, ssl_disabled=True)
        session.connect(ours)
        assert session._sock is ours
        session._execute_command(COMMAND.COM_REGISTER_SLAVE, b"body")
        session._read_packet()
        assert asked[-1] == bytes([COMMAND.COM_REGISTER_SLAVE]) + b"body"
        session._execute_command(COMMAND.COM_BINLOG_DUMP, b"body")
        assert session._read_packet().get_all_data() == b"\0an event"
        assert COMMAND.COM_BINLOG_DUMP_GTID == 0x1E
        theirs.sendall(b"the stream")
        assert session._sock.recv(100) == b"the stream"  # nothing was read ahead
        session._force_close()
        assert not session.open
        assert ours.fileno() == -1
    theirs.close()


def test_psycopg_waits_by_a_generator_that_is_told_of_silence() -> None:
    from tidemill.net.pgsession import NoAnswer, PgSession

    waits: list[list[int]] = []

    class Watched(PgSession):
        silence_seconds = 0.3

        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            def watched() -> Any:
                waits.append([])
                try:
                    wanted = next(gen)
                    while True:
                        ready = yield wanted
                        waits[-1].append(int(ready))
                        wanted = gen.send(ready)
                except StopIteration as end:
                    return end.value

            return super().wait(watched(), *arguments, **options)

    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def server() -> None:
        sock, _ = listener.accept()
        with sock:
            _exactly(sock, struct.unpack(">i", _exactly(sock, 4))[0] - 4)
            sock.sendall(_pg_message(b"R", struct.pack(">i", 0)) + _pg_message(b"Z", b"I"))
            _exactly(sock, 5)
            done.wait(60)  # the query is never answered

    what = "every query goes through Connection.wait(generator), which sends 0 into it while the server is silent"
    with listener, _running(server), relied_upon("psycopg", what):
        try:
            dsn = f"host=127.0.0.1 port={listener.getsockname()[1]} user=u dbname=d sslmode=disable gssencmode=disable"
            db = Watched.connect(dsn, autocommit=True)
            began = time.monotonic()
            with pytest.raises(NoAnswer):
                db.execute("SELECT 1")
            assert time.monotonic() - began >= Watched.silence_seconds
            assert waits[-1].count(0) >= 2
            db.close()
        finally:
            done.set()


def test_redis_connections_have_a_plain_socket() -> None:
    import redis

    from tidemill.sinks.redis.client import RedisConnection

    listener = socket.create_server(("127.0.0.1", 0))

    def server() -> None:
        sock, _ = listener.accept()
        with sock:
            while got := sock.recv(1 << 16):
                sock.sendall(b"+OK\r\n" * len(re.findall(rb"^\*\d+\r$", got, re.MULTILINE)))

    with listener, _running(server), relied_upon("redis", "connection_pool.get_connection()._sock"):
        client = redis.Redis(port=listener.getsockname()[1], protocol=2)
        connection = client.connection_pool.get_connection()
        assert isinstance(connection._sock, socket.socket)
        wire = RedisConnection(connection, "here")
        wire.run(memoryview(b"*1\r\n$4\r\nPING\r\n" * 3), 3)
        wire.close()
        client.close()


def test_nats_asks_a_subclass_to_sign() -> None:
    from tidemill.sinks.nats import NatsConfig
    from tidemill.sinks.nats.client import Signer, _abandon, _connection, _login

    seed = "SUAAVWRZG6M5FA5VRRGWSCIHKTOJC7EWNIT4JV3FTOIPO4OBFR5WA7X5TE"
    config = NatsConfig.model_validate(
        {"id": "n", "servers": ["nats://h"], "stream": "s", "subject": "x", "nkey_seed": seed}
    )
    greeted: list[Any] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {
            "server_id": "x",
            "version": "2.10.0",
            "nonce": "once",
            "max_payload": 1000,
            "headers": True,
            "proto": 1,
        }
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            if line.startswith(b"CONNECT "):
                greeted.append(json.loads(line[8:]))
            elif line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    async def meet() -> None:
        listener = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        connection = _connection(config)
        await connection.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, **_login(config))
        assert connection._transport._io_writer.transport is not None
        await _abandon(connection)
        listener.close()
        await listener.wait_closed()

    with relied_upon("nats-py", "nkeys_seed_str, _setup_nkeys_connect() and what it sets; ._transport._io_writer"):
        asyncio.run(asyncio.wait_for(meet(), 30))
        signer = Signer(seed)
        assert greeted[0]["nkey"] == signer.public
        assert greeted[0]["sig"] == signer("once").decode()


def test_pyspark_starts_and_forks_the_way_we_bend_it() -> None:
    from py4j.clientserver import JavaClient
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkContext, accumulators, daemon
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    with relied_upon("pyspark", "what stream/ replaces or calls before a session is there"):
        assert {"_gateway", "_jvm", "_active_spark_context"} <= set(dir(SparkContext)), "forgotten after a lost JVM"
        assert hasattr(SparkSession, "_instantiatedSession")
        assert "_gateway_client" in _stored_by(JavaGateway.set_gateway_client)
        assert hasattr(JavaClient, "get_thread_connection"), "of the query that has ended"
        assert "_jsc" in _stored_by(SparkContext._do_init)
        assert "gateway" in inspect.signature(SparkContext._ensure_initialized).parameters
        assert "popen_kwargs" in inspect.signature(launch_gateway).parameters
        assert {"environment", "_jvm"} <= set(_stored_by(SparkContext._do_init)) | set(dir(SparkContext))
        for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
            assert callable(server.handle_error)
        assert "worker" in daemon.manager.__code__.co_names  # looked up when it forks: ours is called
    with relied_upon("pyspark", "the planning process connects to PYTHON_WORKER_FACTORY_SOCK_PATH (stream/early)"):
        assert find_spec("pyspark.sql.streaming.python_streaming_source_runner") is not None
        spark = Path(str(inspect.getfile(SparkContext))).parent.parent
        assert any("PYTHON_WORKER_FACTORY_SOCK_PATH" in file.read_text() for file in spark.glob("*.py"))


def test_dbos_recovers_the_runs_of_named_processes() -> None:
    """That it takes no run of another one is shown in tests/service/schedule/test_run_queue.py."""
    from dbos import DBOS

    with relied_upon("dbos", "_recover_pending_workflows(executor_ids)"):
        assert list(inspect.signature(DBOS._recover_pending_workflows).parameters) == ["executor_ids"]


def test_every_library_that_we_rely_upon_so_is_pinned_from_above_and_the_lock_follows() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    wanted: dict[str, list[Requirement]] = {}
    for line in lines:
        requirement = Requirement(line)
        wanted.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (_ROOT / "requirements.lock").read_text(), re.MULTILINE))
    for library in DEPENDENTS:
        for requirement in wanted[canonicalize_name(library)]:
            assert {"<", "<=", "==", "~="} & {part.operator for part in requirement.specifier}, f"{requirement}: no end"
            assert requirement.specifier.contains(locked[canonicalize_name(library)]), (
                f"{requirement}: the lock has more"
            )
            assert requirement.specifier.contains(version(library)), f"{requirement}: installed is {version(library)}"


def test_no_other_private_attribute_of_a_foreign_object_is_touched() -> None:
    """One that is needed goes into TOUCHED, with a test of it here and an upper pin."""
    found = {str(path.relative_to(_PACKAGE)): _foreign(path) for path in _PACKAGE.rglob("*.py")}
    assert {name: names for name, names in found.items() if names and not name.startswith("lab/")} == TOUCHED


def _foreign(path: Path) -> set[str]:
    """`x._name` where x is not `self` and nothing in the file's package is called so."""
    text = path.read_text()
    if not re.search(r"(?<!self)(?<!cls)\._[a-z]", text):
        return set()
    found = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr) and not _of_self(node)
    }
    return found - _names_of(path.parent)


@functools.cache
def _names_of(folder: Path) -> set[str]:
    """Every name that the modules in it give to something."""
    own = set[str]()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _of_self(node):
                own.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
    return own


def _of_self(node: ast.Attribute) -> bool:
    if isinstance(node.value, ast.Call):  # super()._name
        return isinstance(node.value.func, ast.Name) and node.value.func.id == "super"
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def _stored_by(function: Any) -> set[str]:
    return {
        node.attr
        for node in ast.walk(ast.parse(inspect.cleandoc("\n" + inspect.getsource(function))))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


@contextlib.contextmanager
def _running(server: Callable[[], None]) -> Iterator[None]:
    """A peer in a thread, which ends with its connection."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            server()
        except (AssertionError, EOFError, OSError) as error:
            problems.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()
    assert problems == []


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = sock.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found


def _pg_message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", 4 + len(body)) + body


def _mysql_packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body
