"""The processor `sql`: a SELECT over events, in a real DuckDB."""

from __future__ import annotations

import decimal
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tidemill.errors import ConfigError, ProcessingError
from tidemill.model.block import UNCHANGED, Block, Op
from tidemill.model.derived import with_column
from tidemill.processors.sql import SqlConfig, SqlProcessor


def select(query: str, **settings: Any) -> SqlProcessor:
    return SqlProcessor(SqlConfig.model_validate({"id": "q", "query": query, **settings}))


def run(processor: SqlProcessor, block: Block) -> Block:
    [made] = processor.process(iter([block]))
    return made


def rows(block: Block, side: str = "after") -> list[Any]:
    found: list[Any] = block.batch.column(side).to_pylist()
    return found


def test_a_star_gives_back_the_same_bytes() -> None:
    block = make_block(20)
    made = run(select("SELECT * FROM events"), block)
    assert made.table is block.table
    assert made.batch.equals(block.batch)


def test_expressions_and_filters() -> None:
    block = make_block(6)
    query = "SELECT * REPLACE (upper(customer) AS customer), price * quantity AS total FROM events WHERE id % 2 = 1"
    made = run(select(query), block)
    assert made.offsets().tolist() == block.offsets().tolist()[1::2]
    assert [row["customer"] for row in rows(made)] == [row["customer"].upper() for row in rows(block)[1::2]]
    assert [row["total"] for row in rows(made)] == [row["price"] * row["quantity"] for row in rows(block)[1::2]]
    assert made.table.columns[-1].name == "total"


def test_columns_can_be_chosen_left_out_and_renamed() -> None:
    block = make_block(2)
    made = run(select("SELECT id, price AS cost, _op AS what FROM events e"), block)
    assert rows(made) == [{"id": i, "cost": decimal.Decimal(i) / 4, "what": "insert"} for i in range(2)]
    assert made.table.key == ("id",)
    assert made.table.columns[1].type == block.table.columns[3].type
    made = run(select("SELECT * EXCLUDE (note, weight) FROM events"), block)
    assert [c.name for c in made.table.columns] == ["id", "customer", "quantity", "price", "paid", "placed_at"]


def test_the_structure_is_known_before_any_row() -> None:
    table = make_table()
    derived = select("SELECT id, lower(customer) AS customer FROM events").derive(table)
    assert derived is not None
    assert [(c.name, c.type.native) for c in derived.columns] == [("id", "bigint"), ("customer", "text")]
    assert select("SELECT * FROM events").derive(table) is table


def test_old_rows_are_computed_too_and_deletes_with_a_key_alone_pass() -> None:
    query = "SELECT id, customer || '!' AS customer FROM events WHERE id <> 1"
    full = make_block(4, table=make_table(identity="full"), ops=[Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE])
    made = run(select(query), full)
    assert made.offsets().tolist() == [full.offsets()[i] for i in (0, 2, 3)]
    assert [row and row["customer"] for row in rows(made, "before")] == [
        None, "customer 2 — Zürich!", "customer 3 — Zürich!",
    ]  # fmt: skip
    assert rows(made)[2] is None
    keyed = make_block(2, ops=[Op.DELETE, Op.INSERT])
    made = run(select("SELECT id, customer FROM events WHERE customer = 'nobody'"), keyed)
    assert made.batch.column("op").to_pylist() == [Op.DELETE]
    assert rows(made, "key") == [{"id": 0}]


def test_a_block_of_which_nothing_passes_but_a_key_is_computed_too() -> None:
    made = run(
        select("SELECT id, upper(customer) AS customer FROM events WHERE false"),
        make_block(2, ops=[Op.DELETE, Op.INSERT]),
    )
    assert rows(made, "key") == [{"id": 0}]
    assert made.rows == 1
    assert run(select("SELECT id, upper(customer) AS customer FROM events WHERE false"), make_block(2)).rows == 0


def test_a_lookup_is_joined_and_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "names.csv"
    file.write_text("nr,label\n0,zero\n1,one\n1,uno\n")
    query = "SELECT events.*, n.label FROM events LEFT JOIN names n ON n.nr = events.id"
    processor = select(query, lookups={"names": {"file": str(file), "reload_seconds": 0.000001}})
    block = make_block(3)
    made = run(processor, block)
    assert [row["label"] for row in rows(made)] == ["zero", "one", "uno", None]
    assert made.offsets().tolist() == [block.offsets()[i] for i in (0, 1, 1, 2)]
    file.write_text("nr,label\n0,nil\n")
    assert [row["label"] for row in rows(run(processor, block))] == ["nil", None, None]
    file.unlink()
    assert [row["label"] for row in rows(run(processor, block))] == ["nil", None, None]  # as it was, and a warning


def test_a_lookup_of_another_shape_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "names.jsonl"
    file.write_text('{"nr": 1}\n')
    query = "SELECT events.*, n.nr AS other FROM events JOIN names n ON n.nr = events.id"
    processor = select(query, lookups={"names": {"file": str(file), "reload_seconds": 0.000001}})
    assert run(processor, make_block(3)).rows == 1
    file.write_text('{"nr": "x"}\n')
    with pytest.raises(ConfigError, match="other columns or types"):
        run(processor, make_block(3))


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT * FROM", "does not parse"),
        ("SELECT * FROM events; SELECT 1", "one statement"),
        ("DROP TABLE events", "must be a SELECT"),
        ("COPY events TO 'x.csv'", "must be a SELECT"),
        ("ATTACH 'x.db'", "must be a SELECT"),
        ("INSERT INTO events VALUES (1)", "must be a SELECT"),
        ("SELECT * FROM events UNION ALL SELECT * FROM events", "must be a SELECT"),
        ("SELECT * FROM read_csv('/etc/passwd')", "FROM events"),
        ("SELECT * FROM '/etc/passwd'", "FROM events"),
        ("SELECT * FROM events JOIN read_text('/etc/passwd') t ON true", "no files, functions"),
        ("SELECT * FROM events JOIN '/etc/passwd' t ON true", "is no lookup"),
        ("SELECT * FROM events JOIN other.people p ON true", "other databases"),
        ("SELECT count(*) AS n FROM events", "combines rows"),
        ("SELECT id, sum(id) OVER () AS s FROM events", "combines rows"),
        ("SELECT id FROM events GROUP BY id", "GROUP BY"),
        ("SELECT DISTINCT id FROM events", "DISTINCT"),
        ("SELECT * FROM events ORDER BY id", "ORDER BY"),
        ("SELECT * FROM events LIMIT 1", "LIMIT"),
        ("WITH x AS (SELECT 1) SELECT * FROM events", "WITH"),
        ("SELECT (SELECT 1) AS x FROM events", "subqueries"),
        ("SELECT * FROM (SELECT * FROM events) e", "FROM events"),
        ("SELECT now() AS t FROM events", "differ in a replay"),
        ("SELECT random() AS t FROM events", "differ in a replay"),
        ("SELECT current_date AS t FROM events", "differ in a replay"),
        ("SELECT uuid() AS t FROM events", "differ in a replay"),
        ("SELECT id FROM events RIGHT JOIN l ON true", "RIGHT JOIN"),
        ("SELECT ? AS x FROM events", "parameters"),
        ("SELECT * FROM events; INSTALL httpfs", "one statement"),
        ("INSTALL httpfs", "must be a SELECT"),
        ("LOAD httpfs", "must be a SELECT"),
        ("PRAGMA database_list", "must be a SELECT"),
        ("CALL pragma_version()", "must be a SELECT"),
        ("SET threads = 8", "must be a SELECT"),
        ("EXPORT DATABASE 'x'", "does not parse|must be a SELECT"),
        ("CREATE TABLE x AS SELECT * FROM events", "must be a SELECT"),
        ("CREATE MACRO f(a) AS a", "must be a SELECT"),
        ("EXPLAIN SELECT * FROM events", "must be a SELECT"),
        ("SELECT id INTO x FROM events", "INTO"),
        ("SELECT * FROM events, read_csv('/etc/passwd')", "no files, functions"),
        ("SELECT * FROM events CROSS JOIN glob('/etc/*')", "no files, functions"),
        ("SELECT * FROM events, query_table('duckdb_settings')", "no files, functions"),
        ("SELECT * FROM events JOIN duckdb_secrets() s ON true", "no files, functions"),
        ("SELECT * FROM events JOIN information_schema.tables t ON true", "other databases"),
        ("SELECT * FROM events WHERE EXISTS (FROM events)", "subqueries"),
        ("SELECT read_text('/etc/passwd') AS x FROM events", "reaches out of the query"),
        ("SELECT getenv('HOME') AS x FROM events", "differ in a replay"),
        ("SELECT current_setting('threads') AS x FROM events", "differ in a replay"),
        ('SELECT "now"() AS x FROM events', "differ in a replay"),
        ("SELECT system.main.random() AS x FROM events", "differ in a replay|subqueries|does not parse"),
        ("SELECT epoch(age(placed_at)) AS x FROM events", "differ in a replay"),
        ("SELECT ago(INTERVAL 1 day) AS x FROM events", "differ in a replay"),
        ("SELECT sleep_ms(10) AS x FROM events", "differ in a replay"),
        ("SELECT * FROM events TABLESAMPLE 10%", "not supported"),
        ("SELECT * FROM events USING SAMPLE 1", "SAMPLE"),
        ("SELECT generate_subscripts([1, 2], 1) AS x FROM events", "several rows of one"),
        ("SELECT * FROM events, unnest([1, 2])", "not supported|no files, functions|only lookups"),
        ("SELECT #1 AS x FROM events", "not supported"),
        ("SELECT * LIKE 'i%' FROM events", "a star stands alone"),
        ("SELECT * FROM events POSITIONAL JOIN l", "order of rows|does not parse"),
        ("SELECT * FROM events FOR UPDATE", "FOR UPDATE"),
    ],
)
def test_what_a_query_may_not_do_is_refused_at_validation(query: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        select(query, lookups={"l": {"file": "l.csv"}})


def test_functions_that_only_duckdb_knows_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="combines rows"):
        run(select("SELECT fsum(id) AS x FROM events"), make_block(1))


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="statu"):
        run(select("SELECT id, statu FROM events"), make_block(1))


def test_an_event_that_the_query_fails_on_is_named_and_not_quoted() -> None:
    block = make_block(5)
    query = "SELECT *, CASE WHEN id = 3 THEN CAST(customer AS integer) ELSE 0 END AS n FROM events"
    with pytest.raises(ProcessingError) as caught:
        run(select(query), block)
    assert list(caught.value.reasons) == [int(block.offsets()[3])]
    assert "Zürich" not in str(caught.value)


def test_a_query_that_never_ends_is_ended_by_timeout_ms_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "many.csv").write_text("n\n" + "\n".join(str(n) for n in range(20_000)))
    joins = " ".join(f"JOIN many m{n} ON m{n}.n >= 0" for n in range(4))  # 1.6e17 rows of each event
    query = f"SELECT e.* FROM events e {joins} WHERE m0.n + m1.n + m2.n + m3.n < e.id"
    processor = select(query, lookups={"many": {"file": tmp_path / "many.csv"}}, timeout_ms=300)
    block = make_block(3)
    for _ in range(2):
        with pytest.raises(ProcessingError, match="ran longer than timeout_ms, 300 ms") as caught:
            run(processor, block)
        assert list(caught.value.reasons) == block.offsets().tolist(), "nobody knows which one it was"
    connection = processor._open()
    assert connection.sql("SELECT count(*) FROM many").fetchall() == [(20_000,)], "the database is as healthy as before"
    processor.close()


def test_a_query_that_is_done_in_time_is_never_interrupted() -> None:
    processor = select("SELECT *, id + 1 AS next FROM events", timeout_ms=60_000)
    before = threading.active_count()
    for _ in range(20):
        assert rows(run(processor, make_block(2)))[1]["next"] == 2
    assert threading.active_count() <= before + 1, "no watchdog stays"
    used, limit = processor.limit_usage()["timeout_ms"]
    assert 0 < used < limit == 60_000


def test_unchanged_columns_pass_but_nothing_is_computed_from_them() -> None:
    block = with_column(make_block(2, ops=Op.UPDATE), "unchanged", pa.array([[6], None], UNCHANGED))
    made = run(select("SELECT note, id, upper(customer) AS customer FROM events"), block)
    assert made.batch.column("unchanged").to_pylist() == [[0], None]
    with pytest.raises(ProcessingError, match='column "note" was not sent') as caught:
        run(select("SELECT id, length(note) AS n FROM events"), block)
    assert list(caught.value.reasons) == [int(block.offsets()[0])]


def test_the_database_behind_it_reaches_nothing(tmp_path: Path) -> None:
    processor = select("SELECT * FROM events")
    run(processor, make_block(1))
    connection = processor._open()
    import duckdb

    files = ("SELECT * FROM read_text('/etc/hostname')", f"COPY (SELECT 1) TO '{tmp_path}/x'")
    for statement in (*files, "INSTALL httpfs", "SET threads = 8"):
        with pytest.raises(duckdb.Error):
            connection.execute(statement)
    assert os.listdir(tmp_path) == []
    processor.close()
