"""A strict stand-in for StarRocks, since no server of it can be had: frontend and backend for Stream Load over HTTP,
and the frontend's MySQL protocol, over rows in SQLite.

It insists on what StarRocks documents, so that a client that is lax fails here: `Expect: 100-continue`, the frontend's
redirect to the backend without reading the body, credentials at both, labels that are used once, `strict_mode`,
`max_filter_ratio`, partial updates with named columns, `__op`, conditional updates (`merge_condition` on a column that
is loaded and not of the key; no deletes among them), a report of refused rows at the error URL, states of transactions.
A process of its own; it can be killed and started again with the same ports and rows.

https://docs.starrocks.io/docs/sql-reference/sql-statements/loading_unloading/STREAM_LOAD/
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import re
import signal
import socket
import socketserver
import sys
import threading
import time
import urllib.parse
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import orjson

from tidemill.lab.servers.process import ServerProcess, free_ports, listens
from tidemill.lab.servers.starrocks_standin.mysql import Connection
from tidemill.lab.servers.starrocks_standin.store import Forbidden, Load, Rejected, StandinStore

_LOAD = re.compile(r"^/api/([^/]+)/([^/]+)/_stream_load$")
_STATE = re.compile(r"^/api/([^/]+)/get_load_state$")


class StarRocks(ServerProcess):
    """`port` is the frontend's for HTTP; backend and MySQL protocol have their own."""

    name = "starrocks"
    label = "strict stand-in"

    def __init__(self, directory: Path | None = None, *, user: str = "root", password: str = "") -> None:
        super().__init__(directory)
        self.user = user
        self.password = password
        self.port, self.backend_port, self.mysql_port = free_ports(3)

    @property
    def http_port(self) -> int:
        return self.port

    def command(self) -> list[str]:
        return [sys.executable, "-m", __spec__.name]

    def instructions(self) -> bytes:
        ports = (self.http_port, self.backend_port, self.mysql_port)
        return orjson.dumps([str(self.directory / "rows.sqlite"), *ports, self.user, self.password]) + b"\n"

    def answers(self) -> bool:
        return all(listens(port) for port in (self.http_port, self.backend_port, self.mysql_port))

    def query(self, statement: str) -> list[dict[str, Any]]:
        """Through the MySQL protocol, as any client would."""
        import pymysql
        import pymysql.cursors

        connection = pymysql.connect(
            host="127.0.0.1", port=self.mysql_port, user=self.user, password=self.password,
            cursorclass=pymysql.cursors.DictCursor,
        )  # fmt: skip
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def script(self, **behaviour: Any) -> None:
        """For the next load: `answer` (a Status to give although it was loaded), `hold` (seconds that it is under way
        after its connection broke), `fail` (a Message to fail with), `drop` (break the connection when it is done)."""
        target = f"http://127.0.0.1:{self.http_port}/stand-in/script"
        with urllib.request.urlopen(urllib.request.Request(target, orjson.dumps(behaviour)), timeout=10):
            pass


class _Node(http.server.BaseHTTPRequestHandler):
    """What frontend and backend share. The server object has `cluster`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or head and body of a small answer wait for each other's acknowledgement
    server: Any

    def setup(self) -> None:
        super().setup()
        self.cluster: _Cluster = self.server.cluster

    def handle_expect_100(self) -> bool:
        return True  # each node decides itself

    def _login(self) -> bool:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        wanted = f"{self.cluster.user}:{self.cluster.password}".encode()
        if scheme == "Basic" and base64.b64decode(token) == wanted:
            return True
        self._json({"Status": "Fail", "Message": "Access denied"}, 401)
        return False

    def _json(self, document: dict[str, Any], status: int = 200) -> None:
        self._reply(status, orjson.dumps(document), {"Content-Type": "application/json"})

    def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Frontend(_Node):
    def do_PUT(self) -> None:
        """Never reads the body: the client is to wait for the redirect."""
        if not _LOAD.match(self.path):
            self._json({"Status": "Fail", "Message": "not found"}, 404)
        elif self.headers.get("Expect", "").lower() != "100-continue":
            self._json({"Status": "Fail", "Message": "There is no 100-continue header"})
        elif self._login():
            self._reply(307, b"", {"Location": f"http://127.0.0.1:{self.cluster.backend_port}{self.path}"})

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        found = _STATE.match(path)
        if found is None:
            self._json({"Status": "Fail", "Message": "not found"}, 404)
        elif self._login():
            label = urllib.parse.parse_qs(query).get("label", [""])[0]
            state = self.cluster.store.state(found[1], label)
            self._json({"state": state, "status": "OK", "msg": "Success", "label": label})

    def do_POST(self) -> None:
        self.cluster.scripted.append(orjson.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._json({})


class _Backend(_Node):
    def do_GET(self) -> None:
        """The report of refused rows needs no login, as in StarRocks."""
        file = urllib.parse.parse_qs(self.path.partition("?")[2]).get("file", [""])[0]
        report = self.cluster.reports.get(file)
        if report is None:
            self._reply(404, b"", {})
        else:
            self._reply(200, report, {"Content-Type": "text/plain"})

    def do_PUT(self) -> None:
        path = _LOAD.match(self.path)
        if path is None or not self._login():
            return
        if self.headers.get("Expect", "").lower() != "100-continue":
            self._json({"Status": "Fail", "Message": "There is no 100-continue header"})
            return
        names = tuple(name.strip(" `") for name in self.headers.get("columns", "").split(",") if name.strip())
        load = Load(
            urllib.parse.unquote(path[1]), urllib.parse.unquote(path[2]), self.headers.get("label", ""),
            tuple(n.encode("latin-1").decode() for n in names), self.headers.get("partial_update", "") == "true",
            self.headers.get("merge_condition", ""),
        )  # fmt: skip
        problem = self._problem() or self.cluster.store.refuse(load)
        if problem:
            self._json(self._result(load, "Fail", problem))
            return
        if self.cluster.store.state(load.db, load.label) in ("PREPARE", "COMMITTED", "VISIBLE"):
            running = self.cluster.store.state(load.db, load.label) == "PREPARE"
            known = {"ExistingJobStatus": "RUNNING" if running else "FINISHED"}
            self._json(self._result(load, "Label Already Exists", "the label is used", **known))
            return
        self.send_response_only(100)
        self.end_headers()
        body = self._body()
        if body is not None:
            self._load(load, body)

    def _problem(self) -> str:
        wanted = {"format": "json", "strip_outer_array": "true", "strict_mode": "true"}
        wrong = [f"{n} must be {v} here" for n, v in wanted.items() if self.headers.get(n, "").lower() != v]
        paths = orjson.loads(self.headers.get("jsonpaths", "[]"))
        if len(paths) != len(self.headers.get("columns", "").split(",")) or not all(p.startswith("$.") for p in paths):
            wrong.append("jsonpaths and columns must go together")
        if float(self.headers.get("max_filter_ratio", "0")) != 0:
            wrong.append("the stand-in filters nothing")
        if "Content-Length" not in self.headers and self.headers.get("Transfer-Encoding", "") != "chunked":
            wrong.append("neither Content-Length nor chunks")
        return "; ".join(wrong)

    def _load(self, load: Load, body: bytes) -> None:
        with self.cluster.scripting:
            script = self.cluster.scripted.pop(0) if self.cluster.scripted else {}
        if "fail" in script:
            self._json(self._result(load, "Fail", script["fail"]))
            return
        if "hold" in script:
            self.cluster.store.held.add((load.db, load.label))
            threading.Thread(target=self.cluster.finish_later, args=(load, body, script["hold"]), daemon=True).start()
            self._break()
            return
        try:
            rows, errors = self.cluster.store.apply(load, body)
        except (Rejected, Forbidden, orjson.JSONDecodeError) as error:
            self._json(self._result(load, "Fail", str(error)))
            return
        counts = {"NumberTotalRows": rows, "NumberLoadedRows": 0 if errors else rows, "NumberFilteredRows": len(errors)}
        if errors:
            name = f"error_log_{uuid.uuid4().hex}"
            self.cluster.reports[name] = "\n".join(errors[:50]).encode()
            url = f"http://127.0.0.1:{self.cluster.backend_port}/api/_load_error_log?file={name}"
            self._json(self._result(load, "Fail", "too many filtered rows", ErrorURL=url, **counts))
        elif script.get("drop"):
            self._break()
        else:
            self._json(self._result(load, script.get("answer", "Success"), "OK", **counts))

    def _result(self, load: Load, status: str, message: str, **more: Any) -> dict[str, Any]:
        return {"TxnId": 1, "Label": load.label, "Status": status, "Message": message, **more}

    def _break(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _body(self) -> bytes | None:
        size = int(self.headers.get("Content-Length", 0))
        data = self.rfile.read(size)
        return data if len(data) == size else None  # the client went away: nothing is loaded


class _Cluster:
    def __init__(self, file: str, backend_port: int, user: str, password: str) -> None:
        self.store = StandinStore(Path(file))
        self.backend_port = backend_port
        self.user = user
        self.password = password
        self.reports: dict[str, bytes] = {}
        self.scripted: list[dict[str, Any]] = []
        self.scripting = threading.Lock()

    def finish_later(self, load: Load, body: bytes, seconds: float) -> None:
        time.sleep(seconds)
        self.store.apply(load, body)
        self.store.held.discard((load.db, load.label))


class _MysqlServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def serve() -> None:
    file, http_port, backend_port, mysql_port, user, password = orjson.loads(sys.stdin.readline())
    cluster = _Cluster(file, backend_port, user, password)
    servers: list[Any] = [
        http.server.ThreadingHTTPServer(("127.0.0.1", http_port), _Frontend),
        http.server.ThreadingHTTPServer(("127.0.0.1", backend_port), _Backend),
        _MysqlServer(("127.0.0.1", mysql_port), Connection),
    ]
    for server in servers:
        server.daemon_threads = True
        server.cluster, server.store, server.user, server.password = cluster, cluster.store, user, password
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def stop_with_owner() -> None:
        sys.stdin.read()
        stopped.set()

    threading.Thread(target=stop_with_owner, daemon=True).start()
    stopped.wait()
    cluster.store.close()
