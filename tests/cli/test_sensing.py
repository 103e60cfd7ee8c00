"""`tidemill sensing` and `tidemill drift`, over a pipeline that ran."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from jsonschema import Draft202012Validator

from tests.cli.test_run import document, lines_of, postgres18_dsn, running, until
from tests.support.terminal import Terminal

__all__ = ["postgres18_dsn"]  # a fixture

# As in the reference system's documents, and every event looked at, with what it may also keep.
SENSING = """
  schema_sensing:
    enabled: true
    deep_inspect: {enabled: true, max_depth: 3}
    sampling: {warmup_events: 50, sample_rate: 1}
    values: {ranges: true, enumerations: true, formats: true}
    drift: {baseline_documents: 20, declared: {public.orders: {total: {max: 1000}}}}
"""
INSERT = """
INSERT INTO orders (id, email, total, doc)
SELECT g, 'user' || g || '@example.org', g, jsonb_build_object('sku', 'a' || g, 'lines', jsonb_build_array(
    jsonb_build_object('n', g, 'price', g / 4.0))) FROM generate_series({}, {}) g
"""


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def test_a_pipeline_that_ran_shows_what_its_events_are_like(
    postgres18_dsn: str, tmp_path: Path, tidemill: Terminal
) -> None:
    path = document(tmp_path, postgres18_dsn, "public.orders")
    path.write_text(path.read_text() + SENSING)
    with psycopg.connect(postgres18_dsn, autocommit=True) as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY, email text, total numeric(10,2) NOT NULL, doc jsonb)")
        with running(path) as process:
            until(process, lambda: db.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone())
            db.execute(INSERT.format(1, 40))
            db.execute("UPDATE orders SET email = NULL WHERE id <= 10")
            until(process, lambda: len(lines_of(tmp_path / "orders-files")) == 50)
            db.execute("ALTER TABLE orders ADD COLUMN note text")
            db.execute("INSERT INTO orders VALUES (41, 'a@b.de', 2000, '{\"sku\": 7}', 'x')")
            until(process, lambda: len(lines_of(tmp_path / "orders-files")) == 52)  # with the change of the table
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error.decode()[-2000:]

    (listed,) = tidemill("sensing", "ls", path, "--json").json["schemas"]
    assert (listed["table"], listed["events"], listed["sampled"]) == ("public.orders", 51, 51)
    shown = tidemill("sensing", "show", path, "public.orders", "--json").json["columns"]
    assert (shown["email"]["nulls"], shown["email"]["formats"]) == (10, ["email"])
    assert shown["total"]["range"] == {"min": "1.00", "max": "2000.00"}
    assert {each["path"]: each["types"] for each in shown["doc"]["paths"]} == {
        "": ["object"], "/sku": ["integer", "string"], "/lines": ["array"], "/lines/[]": ["object"],
        "/lines/[]/n": ["integer"], "/lines/[]/price": ["number"],
    }  # fmt: skip
    assert "/lines/[]" in tidemill("sensing", "show", path, "public.orders").out
    stats = tidemill("sensing", "stats", path, "--json").json
    assert (stats["events"], stats["tables"][0]["documents"], stats["offset"]) == (51, 51, 52)
    assert "51 of 51 events" in tidemill("sensing", "stats", path).out

    schema = tidemill("sensing", "json-schema", path, "public.orders", "--json").json
    rows: list[Any] = [event["after"] for event in lines_of(tmp_path / "orders-files") if event["op"] != "ddl"]
    for row in rows:
        Draft202012Validator(schema).validate(row)
    assert not Draft202012Validator(schema).is_valid({**rows[0], "doc": {"lines": 5}})

    found = tidemill("drift", "ls", path, "--json").json["drift"]
    assert [(each["kind"], each["subject"], each["events"]) for each in found] == [
        ("out_of_range", "total", 1),
        ("structure_change", "doc/lines", 1),
        ("structure_change", "doc/sku", 1),
        ("undeclared_column", "note", 1),
    ]
    assert found[0]["first"]["position"].count("/") == 1
    assert b"schema.drift" in error
    last = orjson.loads(out.splitlines()[-1])
    assert {notice["code"] for notice in last["notices"]} >= {"drift-undeclared-column", "drift-out-of-range"}
    examined = tidemill("doctor", path, "--json").json["checks"]
    assert {each["name"] for each in examined} >= {f"{n['code']} {n['subject']}" for n in last["notices"]}
    assert "column note of type text is not declared" in tidemill("drift", path).out  # `ls` may be left out
    assert "2000" not in tidemill("drift", "ls", path, "--json").out
    valued = tidemill("drift", "ls", path, "--values", "--json").json["drift"]
    assert [(each["subject"], [(one["key"], one["values"]) for one in each["examples"]]) for each in valued] == [
        ("total", [({"id": 41}, ["2000.00"])]), ("doc/lines", [({"id": 41}, [])]), ("doc/sku", [({"id": 41}, [7])]),
        ("note", [({"id": 41}, ["x"])]),
    ]  # fmt: skip
    told = tidemill("drift", path, "--values").out
    assert '{"id": 41}' in told
    assert "nothing there" in told
    log = tmp_path / "state" / "orders" / "log"
    log.rename(log.with_name("away"))
    assert "the log does not have it any more" in tidemill("drift", path, "--values").out
    log.with_name("away").rename(log)
    assert tidemill("drift", "accept", path, "public.orders", "--yes", "--json").json["accepted"] == 4
    assert tidemill("drift", "ls", path, "--json").json["drift"] == []
