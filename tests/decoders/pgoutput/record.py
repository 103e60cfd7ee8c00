"""Runs the cases against real servers and keeps their bytes: `python -m tests.decoders.pgoutput.record [CASE…]`.

A golden file is written only if the decoder makes of the bytes what the case says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from tests.decoders.golden_text import to_json, to_lines
from tests.decoders.pgoutput import goldens
from tests.decoders.pgoutput.cases import CASES, Case
from tests.support.pgstream import Recording, frames
from tidemill.lab.servers.postgres import Postgres, embedded_bin, installed_bin


def main(wanted: list[str]) -> int:
    with ExitStack() as stack:
        servers = {
            version: stack.enter_context(
                Postgres(bin_dir, durable=False, logical_decoding_work_mem="64kB", autovacuum=False)
            )
            for version, bin_dir in ((15, installed_bin(15)), (18, embedded_bin()))
        }
        for case in CASES:
            if not wanted or case.name in wanted:
                recorded = goldens.Golden(
                    case.name, case.setup, case.sql, case.keys, case.barrier, goldens.numbered(case.expected),
                    [_stream(servers[s], case, protocol, streaming) for s, protocol, streaming in case.streams],
                )  # fmt: skip
                for stream in recorded.streams:
                    goldens.check(recorded, stream)
                _write(goldens.FOLDER / f"{case.name}.json", recorded)
                sys.stdout.write(f"{case.name}: {[len(s.data) for s in recorded.streams]} bytes\n")
    return 0


def _stream(server: Postgres, case: Case, protocol: int, streaming: str) -> goldens.Stream:
    with (
        server.database("golden") as dsn,
        psycopg.connect(dsn, autocommit=True) as one,
        psycopg.connect(dsn, autocommit=True) as two,
    ):
        for statement in [*case.setup, f"CREATE PUBLICATION p {case.publication or 'FOR ALL TABLES'}"]:
            one.execute(statement.encode())
        one.execute("SELECT pg_create_logical_replication_slot('golden', 'pgoutput')")
        with Recording(server, "golden", dbname="golden", protocol=protocol, streaming=streaming) as recording:
            for statement in case.sql:
                if statement == "[wait]":
                    recording.catch_up()
                else:
                    _run(one, two, statement)
            recording.catch_up()
    return goldens.Stream(server.version.split()[0], protocol, streaming, recording.data)


def _run(one: psycopg.Connection[Any], two: psycopg.Connection[Any], statement: str) -> None:
    if statement.startswith("[fails] "):
        try:
            one.execute(statement.removeprefix("[fails] ").encode())
        except psycopg.Error:
            return
        raise AssertionError(f"the server did not refuse: {statement}")
    (two if statement.startswith("[b] ") else one).execute(statement.removeprefix("[b] ").encode())


def _write(path: Path, recorded: goldens.Golden) -> None:
    """One row and one frame a line, so that a difference is readable."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(_lines(recorded)))


def _lines(recorded: goldens.Golden) -> Iterator[str]:
    yield f'{{"name": {to_json(recorded.name)},\n'
    yield f' "setup": {to_lines(recorded.setup)},\n'
    yield f' "sql": {to_lines(recorded.sql)},\n'
    yield f' "keys": {to_json(recorded.keys)}, "barrier": {to_json(recorded.barrier)},\n'
    yield f' "expected": {to_lines(recorded.expected)},\n'
    yield ' "streams": ['
    for i, stream in enumerate(recorded.streams):
        yield "," if i else ""
        yield f'\n  {{"server": {to_json(stream.server)}, "protocol": {stream.protocol}, '
        pieces = to_lines([frame.hex() for frame in frames(stream.data)])
        yield f'"streaming": {to_json(stream.streaming)},\n   "bytes": {pieces}}}'
    yield "]}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
