"""A stand-in for a ClickHouse server, with the real engine behind it: an HTTP front of ours over chdb.

No ClickHouse server can be installed from a package index, but its engine can: chdb runs the same parsers, table
engines and functions. What is ours is the HTTP interface, as much of it as clickhouse-connect uses: statements, inserts
in any format, settings and bound values in the URL, errors with their code, a user and a password. Statements run one
after another, and bodies are not compressed (`compress=False`). The front is a process of its own, because an engine
owns its data folder and its process; it can be killed and started again on the same port with the same data:

    with ClickHouse() as server:
        clickhouse_connect.get_client(port=server.port, compress=False)
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import re
import signal
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.process import ServerProcess

_NOT_SETTINGS = {"query", "database", "session_id", "session_timeout", "query_id", "default_format", "user", "password"}
_NOT_OURS = {
    "wait_end_of_query", "buffer_size", "client_protocol_version", "compress", "decompress",
    "enable_http_compression", "send_progress_in_http_headers", "http_headers_progress_interval_ms",
}  # fmt: skip
_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_INSERT = re.compile(r"^\s*INSERT\s+INTO\b", re.IGNORECASE)
_WHOLE = re.compile(rb"(\s*INSERT\s+INTO\b[^\n]*\bFORMAT\s+\w+)\n", re.IGNORECASE)  # statement and data in one body
_CODE = re.compile(r"Code:\s*(\d+)")
_AUTHENTICATION_FAILED = 516
_STATUS = {_AUTHENTICATION_FAILED: 403, 60: 404, 81: 404, 497: 403, 241: 503}  # as HTTPHandler.cpp of ClickHouse maps


class ClickHouse(ServerProcess):
    """One front and its engine."""

    name = "clickhouse"
    label = "stand-in (chdb engine behind an HTTP front)"
    start_seconds = 60.0

    def __init__(self, directory: Path | None = None, *, user: str = "default", password: str = "") -> None:
        super().__init__(directory)
        self.user = user
        self.password = password

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", __spec__.name]

    def instructions(self) -> bytes:
        return orjson.dumps([str(self.directory / "data"), self.port, self.user, self.password]) + b"\n"

    def query(self, statement: str) -> list[dict[str, Any]]:
        """For tests and benches: rows as JSON has them. 64-bit integers are numbers, decimals are text."""
        settings = {"output_format_json_quote_64bit_integers": "0", "output_format_json_quote_decimals": "1"}
        target = f"{self.url}/?{urllib.parse.urlencode({**settings, 'default_format': 'JSONEachRow'})}"
        request = urllib.request.Request(target, statement.encode(), headers=self._login())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return [orjson.loads(line) for line in answer.read().splitlines()]
        except urllib.error.HTTPError as error:
            with error:
                raise EnvironmentProblem(error.read().decode(errors="replace"), where=statement) from error

    def _login(self) -> dict[str, str]:
        token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {token}"}


class _Failure(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Engine:
    """chdb's one session, which takes one statement at a time; settings are set before it and unset after it."""

    def __init__(self, folder: str) -> None:
        from chdb import session

        self._session = session.Session(folder)
        self._body = Path(folder) / "body"
        self._lock = threading.Lock()

    def run(self, statement: str, data: bytes, database: str, settings: dict[str, str], fallback: str) -> bytes:
        with self._lock, self._set(settings):
            self._execute(f"USE {_quote(database)}")
            if _INSERT.match(statement) and data:
                return self._insert(statement, data)
            form = _FORMAT.search(statement)
            return self._execute(statement, form.group(1) if form else fallback)

    def _insert(self, statement: str, data: bytes) -> bytes:
        form = _FORMAT.search(statement)
        if form is None:
            return self._execute(f"{statement}\n{data.decode()}")
        # Through a file: chdb's streaming insert knows neither the session's settings nor a table's constraints.
        self._body.write_bytes(data)
        head = statement[: form.start()].rstrip()
        return self._execute(f"{head} FROM INFILE {_literal(str(self._body))} FORMAT {form.group(1)}")

    @contextlib.contextmanager
    def _set(self, settings: dict[str, str]) -> Iterator[None]:
        for name, value in settings.items():
            self._execute(f"SET {name} = {_literal(value)}")
        try:
            yield
        finally:
            for name in settings:
                if not name.startswith("param_"):
                    self._execute(f"SET {name} = DEFAULT")

    def _execute(self, statement: str, form: str = "TabSeparated") -> bytes:
        try:
            return bytes(self._session.query(statement, form).bytes() or b"")
        except Exception as error:
            raise _failure(error) from error

    def close(self) -> None:
        with self._lock:
            self._session.close()


def _failure(error: Exception) -> _Failure:
    code = _CODE.search(str(error))
    message = str(error)
    return _Failure(int(code.group(1)) if code else 1002, message[message.find("Code:") :] if code else message)


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quote(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


class _Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or head and body of a small answer wait for each other's acknowledgement
    engine: _Engine
    login: tuple[str, str]

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/ping":
            return self._answer(200, b"Ok.\n")
        return self.do_POST()

    def do_POST(self) -> None:
        parameters = dict(urllib.parse.parse_qsl(self.path.partition("?")[2], keep_blank_values=True))
        body = self._body()
        try:
            if self._authenticated(parameters):
                self._run(parameters, body)
            else:
                raise _Failure(
                    _AUTHENTICATION_FAILED,
                    f"Code: {_AUTHENTICATION_FAILED}. DB::Exception: {self.login[0]}: Authentication failed: password "
                    "is incorrect, or there is no user with such name. (AUTHENTICATION_FAILED)",
                )
        except _Failure as failure:
            status = _STATUS.get(failure.code, 500 if failure.code >= 1000 else 400)
            self._answer(status, str(failure).encode(), {"X-ClickHouse-Exception-Code": str(failure.code)})

    def _run(self, parameters: dict[str, str], body: bytes) -> None:
        if self.headers.get("Content-Encoding"):
            raise _Failure(1001, "Code: 1001. DB::Exception: the stand-in takes no compressed bodies. (STD_EXCEPTION)")
        statement, data = parameters.get("query", ""), body
        whole = _WHOLE.match(body) if not statement else None
        if whole:
            statement, data = whole.group(1).decode(), body[whole.end() :]
        elif not statement:
            statement, data = body.decode(), b""
        elif not _INSERT.match(statement):
            statement, data = f"{statement}\n{body.decode()}", b""
        settings = {n: v for n, v in parameters.items() if n not in _NOT_SETTINGS | _NOT_OURS}
        fallback = parameters.get("default_format", "TabSeparated")
        answer = self.engine.run(statement, data, parameters.get("database", "default"), settings, fallback)
        summary = {"read_rows": "0", "written_rows": "0"}
        self._answer(200, answer, {"X-ClickHouse-Summary": orjson.dumps(summary).decode()})

    def _authenticated(self, parameters: dict[str, str]) -> bool:
        given = (parameters.get("user", ""), parameters.get("password", ""))
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            user, _, password = base64.b64decode(token).decode().partition(":")
            given = (user, password)
        elif "X-ClickHouse-User" in self.headers:
            given = (self.headers["X-ClickHouse-User"], self.headers.get("X-ClickHouse-Key", ""))
        return (given[0] or "default", given[1]) == self.login

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("X-ClickHouse-Timezone", "UTC")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _serve() -> None:
    folder, port, user, password = orjson.loads(sys.stdin.readline())
    _Front.engine, _Front.login = _Engine(folder), (user, password)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Front)
    server.daemon_threads = True

    def stop(*_: object) -> None:
        threading.Thread(target=server.shutdown).start()

    def stop_with_owner() -> None:
        sys.stdin.read()  # ends when the owner closes the pipe or goes away
        stop()

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=stop_with_owner, daemon=True).start()
    server.serve_forever(poll_interval=0.05)
    _Front.engine.close()


if __name__ == "__main__":
    _serve()
