"""Two pipelines whose state, registry included, is in one PostgreSQL (`state_uri`)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import psycopg

from tests.support.mirror import until
from tidemill import config
from tidemill.config import Pipeline
from tidemill.contracts.schema_change_store import Decision
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.cause import Cause
from tidemill.service.run.status import WAITING, State
from tidemill.service.runtime import Runtime
from tidemill.service.schema import changes as service
from tidemill.service.schema.versions import newest_schemas, schema_at, schema_versions

CHANGES = 8
DOCUMENT = """
metadata: {{name: {name}}}
spec:
  source: {{type: postgres, config: {{id: {name}, dsn: "{dsn}", tables: [public.{name}, public.common]}}}}
  sinks: [{{type: files, config: {{id: {name}_files, path: {directory}/{name}}}}}]
  ddl: {{gate: {gate}, auto_approve: [add_column, create_table]}}
  state_dir: {directory}/state
  state_uri: {store}
"""


def change_often(dsn: str, table: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        for number in range(CHANGES):
            db.execute(f"ALTER TABLE {table} ADD COLUMN {table}_{number} int".encode())
            db.execute(f"INSERT INTO {table} (id) VALUES ({number})".encode())


def events(pipeline: Pipeline, directory: Path) -> list[dict[str, Any]]:
    """The rows that came to its sink, in the order of the log."""
    files = (directory / pipeline.name).rglob("*.jsonl")
    found = [orjson.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted((event for event in found if event["op"] != "ddl"), key=lambda event: event["offset"])


def test_two_pipelines_share_a_store_and_each_has_its_own_versions_changes_and_decisions(
    tmp_path: Path, spark: Any, postgres18: Postgres
) -> None:
    with (
        postgres18.database("two_pipelines") as dsn,
        postgres18.database("their_store") as store,
        psycopg.connect(dsn, autocommit=True) as db,
        Runtime(spark=spark) as runtime,
    ):
        names = ("orders", "items")
        pipelines = []
        for name in (*names, "common"):
            db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)".encode())
        for name in names:
            path = tmp_path / f"{name}.yaml"
            gate = "true" if name == "orders" else "false"
            path.write_text(DOCUMENT.format(name=name, dsn=dsn, directory=tmp_path, store=store, gate=gate))
            (pipeline,) = config.load(path)
            pipelines.append(pipeline)
            runtime.add(pipeline)
            runtime.start(name)
        orders, items = pipelines
        until(lambda: all(runtime.status(name).stage == "cdc" for name in names))
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(change_often, [dsn] * 3, (*names, "common")))

        def arrived() -> bool:
            assert all(runtime.status(name).state is State.RUNNING for name in names)
            return all(len(events(pipeline, tmp_path)) == 2 * CHANGES for pipeline in pipelines)

        until(arrived)
        for pipeline in pipelines:
            assert [each.table.full_name for each in newest_schemas(pipeline)] == [
                "public.common", f"public.{pipeline.name}"
            ]  # fmt: skip
            sequences = []
            for table in ("common", pipeline.name):
                history = [each.registration.table for each in schema_versions(pipeline, f"public.{table}")]
                assert [each.version for each in history] == list(range(1, CHANGES + 1))
                assert len(history[-1].columns) == CHANGES + 1
                sequences += [each.sequence for each in history]
            assert sorted(sequences) == list(range(1, 2 * CHANGES + 1)), "one count over both tables, no number twice"
            for event in events(pipeline, tmp_path):
                table = f"public.{event['table']}"
                for place in ({"sequence": event["schema_sequence"]}, {"offset": event["offset"]}):
                    found = schema_at(pipeline, table, **place).table
                    assert (found.sequence, found.fingerprint) == (event["schema_sequence"], event["schema_version"])
            changes = service.list_changes(pipeline)
            assert {each.table for each in changes} == {"public.common", f"public.{pipeline.name}"}
            assert [each.number for each in reversed(changes)] == list(range(1, len(changes) + 1))
        db.execute("ALTER TABLE common DROP COLUMN common_0")
        db.execute("INSERT INTO common (id) VALUES (1000)")
        until(lambda: runtime.status("orders").stage == WAITING)
        until(lambda: len(events(items, tmp_path)) == 2 * CHANGES + 1)  # the other one has no gate
        assert len(events(orders, tmp_path)) == 2 * CHANGES
        (waiting,) = (each for each in service.list_changes(orders) if each.decision is Decision.PENDING)
        service.decide(orders, waiting.number, Decision.APPROVED, Cause("ann", "fine"))
        until(lambda: len(events(orders, tmp_path)) == 2 * CHANGES + 1)
        assert "ann" in {each.actor for each in service.list_changes(orders)}
        assert {each.actor for each in service.list_changes(items)} == {"policy"}
        runtime.close()  # before its slots go with the database
