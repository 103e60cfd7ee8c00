"""Runs the cases against real servers and keeps their bytes: `python -m tests.decoders.binlog.record [CASE…]`.

A golden file is written only if the decoder makes of the bytes what the case says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pymysql

from tests.decoders.binlog import goldens as mygoldens
from tests.decoders.binlog.cases import CASES, Case
from tests.decoders.golden_text import to_json, to_lines
from tests.decoders.pgoutput import goldens
from tests.servers.mysql import CACHE
from tests.support.binlogstream import end_of_binlog, packets, record
from tidemill.lab.servers.mariadb import Mariadb
from tidemill.lab.servers.mysql import Mysql, fetch
from tidemill.lab.servers.mysql_family import Server


def main(wanted: list[str]) -> int:
    with ExitStack() as stack:
        servers: dict[str, Server] = {
            "mysql": stack.enter_context(Mysql(fetch(CACHE))),
            "mariadb": stack.enter_context(Mariadb()),
        }
        for case in CASES:
            if not wanted or case.name in wanted:
                recorded = mygoldens.Golden(
                    case.name, case.setup, case.sql, case.known, case.keys, case.ddls, case.filled, case.barrier,
                    goldens.numbered(case.expected), [_stream(servers[s], s, case) for s in case.servers],
                )  # fmt: skip
                for stream in recorded.streams:
                    mygoldens.check(recorded, stream)
                path = mygoldens.FOLDER / f"{case.name}.json"
                path.parent.mkdir(exist_ok=True)
                path.write_text("".join(_lines(recorded)))
                sys.stdout.write(f"{case.name}: {[len(s.data) for s in recorded.streams]} bytes\n")
    return 0


def _stream(server: Server, kind: str, case: Case) -> mygoldens.Stream:
    with _session(server) as one, _session(server) as two:
        _run(one, "DROP DATABASE IF EXISTS golden")
        _run(one, "CREATE DATABASE golden CHARACTER SET utf8mb4")
        for session in (one, two):
            _run(session, "USE golden")
        for statement in case.setup:
            _run(one, statement)
        begin = end_of_binlog(server)
        try:
            for statement in case.sql:
                _run(two if statement.startswith("[b] ") else one, statement.removeprefix("[b] "))
        finally:
            data = record(server, begin, annotate=case.annotate)
            with _session(server) as third:
                for statement in case.undo:
                    _run(third, statement)
        ((version,),) = server.query("SELECT VERSION()")
        began = "empty" if case.by_gtid else f"{begin[0]}:{begin[1]}"
        return mygoldens.Stream(kind, version, began, data)


def _session(server: Server) -> pymysql.Connection[Any]:
    return pymysql.connect(
        host="127.0.0.1", port=server.port, user="root", autocommit=True, charset="utf8mb4",
        init_command="SET time_zone = '+00:00', lock_wait_timeout = 5",
    )  # fmt: skip


def _run(session: pymysql.Connection[Any], statement: str) -> None:
    latin1 = statement == "SET NAMES latin1"
    with session.cursor() as cursor:
        cursor.execute(statement)
    if statement.startswith("SET NAMES"):
        session.encoding = "latin1" if latin1 else "utf8"  # what PyMySQL writes statements in


def _lines(recorded: mygoldens.Golden) -> Iterator[str]:
    """One row and one packet a line, so that a difference is readable."""
    yield f'{{"name": {to_json(recorded.name)},\n'
    yield f' "setup": {to_lines(recorded.setup)},\n'
    yield f' "sql": {to_lines(recorded.sql)},\n'
    yield f' "known": {to_json(recorded.known)}, "keys": {to_json(recorded.keys)}, "ddls": {to_json(recorded.ddls)},\n'
    yield f' "filled": {to_json(recorded.filled)},\n'
    yield f' "barrier": {to_json(recorded.barrier)},\n'
    yield f' "expected": {to_lines(recorded.expected)},\n'
    yield ' "streams": ['
    for i, stream in enumerate(recorded.streams):
        yield "," if i else ""
        yield f'\n  {{"server": {to_json(stream.server)}, "version": {to_json(stream.version)}, '
        yield f'"began": {to_json(stream.began)},\n   "bytes": {to_lines([p.hex() for p in packets(stream.data)])}}}'
    yield "]}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
