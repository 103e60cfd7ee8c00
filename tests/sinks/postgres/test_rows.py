"""Rows at the target are those of the source: values, keys that change, columns that were not sent."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.decoders.pgoutput.kinds import KINDS, SETUP
from tests.sinks.benches import NAME, T
from tests.sinks.postgres.support import Make, delivery_of, write
from tests.support.changes import changes, column, structure
from tests.support.origin import Origin, deal, rows
from tests.support.seed import run_seed
from tidemill.errors import Poisoned, Refused
from tidemill.model.block import Block, Op


def test_every_type_arrives_as_it_was_stored(source: Origin, target: psycopg.Connection[Any], make: Make) -> None:
    seed = run_seed()
    source.run(*SETUP)
    version = source.db.info.server_version // 10000
    tried = [kind for kind in KINDS if kind.since <= version]
    for number, kind in enumerate(tried):
        try:
            source.run(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {kind.type})")
            values = [*kind.values(random.Random(seed)), None]
            source.db.execute(
                f"INSERT INTO t{number} SELECT n, x::{kind.type} "
                "FROM unnest(%s::text[]) WITH ORDINALITY AS given(x, n)".encode(),
                [values],
            )
        except psycopg.errors.FeatureNotSupported:
            assert kind.type == "xml"  # a server built without libxml
            source.run(f"DROP TABLE t{number}", f"CREATE TABLE t{number} AS SELECT 1 AS id")
    sink = make(keyless="append")
    write(sink, *source.deliveries())
    assert not any(to.doubts or to.domains for to in sink._targets.values()), "what the sink makes holds every value"
    for db in (source.db, target):
        db.execute("SET search_path = ''")  # names of types are printed with their schema
    for number, kind in enumerate(tried):
        name, columns = f"public.t{number}", "id, format('%s', v) AS v" if kind.type != "xml" else "id"
        assert rows(target, name, columns) == source.rows(name, columns), f"{kind.type}, seed {seed}"


def test_a_random_workload_with_replays_cut_in_other_ways_ends_in_the_state_of_the_source(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    seed = run_seed()
    pick = random.Random(seed)
    source.run(
        "CREATE TABLE a (id int PRIMARY KEY, n numeric(12,2), note text, big text)",
        "ALTER TABLE a ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE b (x int, y text, v int, PRIMARY KEY (x, y))",
    )
    bounds = [0]
    for _ in range(6):
        for _ in range(40):
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                source.run(_random_statement(pick))
        source.blocks()
        bounds.append(source.end)
    if pick.random() < 0.5:
        source.run("TRUNCATE a", "INSERT INTO a VALUES (1, 1, 'after', 'all')")
    blocks = source.blocks()
    bounds.append(source.end)
    sink = make()
    for start, end in itertools.pairwise(bounds):
        lanes = pick.choice((1, 2, 3))
        attempts = pick.choice((0, 1, 2))
        for _ in range(attempts):  # given up somewhere, with another plan
            other, shorter = pick.choice((1, 2, 4)), pick.randint(start, end)
            for lane in pick.sample(range(other), pick.randint(0, other)):
                if shorter > start and not _splits_a_barrier(blocks, start, shorter):
                    make().write(deal(blocks, start, shorter, lane, other))
        for lane in range(lanes):
            sink.write(deal(blocks, start, end, lane, lanes))
    for table in ("a", "b"):
        assert rows(target, table) == source.rows(table), f"seed {seed}"


def _splits_a_barrier(blocks: list[Block], start: int, end: int) -> bool:
    """Rows that depend on more than their own key come in a batch of their own; these tests do not cut there."""
    return any((b.slice(start, end).batch.column("op").to_numpy() == Op.TRUNCATE).any() for b in blocks)


def _random_statement(pick: random.Random) -> str:
    i, j = pick.randint(1, 25), pick.randint(1, 25)
    return pick.choice(
        (
            f"INSERT INTO a VALUES ({i}, {j}.5, 'n{j}', repeat('x{j}', 2000)) ON CONFLICT DO NOTHING",
            f"INSERT INTO a SELECT g, g, 'many', repeat('m', 3000) FROM generate_series({i}, {i + 5}) g "
            "ON CONFLICT DO NOTHING",
            f"UPDATE a SET note = 'u{j}', n = n + 1 WHERE id % 5 = {i % 5}",
            f"UPDATE a SET big = repeat('y{j}', 2500) WHERE id = {i}",
            f"UPDATE a SET big = NULL, note = NULL WHERE id = {i}",
            f"DELETE FROM a WHERE id = {i}",
            f"INSERT INTO b VALUES ({i % 7}, 'k{j % 7}', {j}) ON CONFLICT (x, y) DO UPDATE SET v = b.v + 1",
            f"UPDATE b SET y = y || '!' WHERE x = {i % 7} AND length(y) < 4",
            f"DELETE FROM b WHERE v % 7 = {j % 7}",
        )
    )


def test_columns_that_were_not_sent_keep_their_value_row_by_row(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text, c int)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, repeat('a' || i, 2000), repeat('b' || i, 2000), 0 FROM generate_series(1, 5) i",
    )
    sink = make()
    write(sink, *source.deliveries())
    start = source.end
    source.run(
        "UPDATE t SET c = 1 WHERE id = 1",
        "UPDATE t SET a = 'short', c = 2 WHERE id = 2",
        "UPDATE t SET c = 3 WHERE id = 2",  # completed by the one before
        "UPDATE t SET b = NULL WHERE id = 3",
        "UPDATE t SET c = 4 WHERE id = 3",
        "UPDATE t SET a = 'x', b = 'y' WHERE id = 4",
        "DELETE FROM t WHERE id = 5",
        "INSERT INTO t VALUES (5, repeat('new', 1000), NULL, 5)",
        "UPDATE t SET c = 6 WHERE id = 5",
    )
    write(sink, *source.deliveries(start))
    assert rows(target, "t") == source.rows("t")


def test_a_key_that_changes_takes_the_values_that_were_not_sent_along(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, c int)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, repeat('a' || i, 2000), 0 FROM generate_series(1, 3) i",
    )
    sink = make()
    write(sink, *source.deliveries())
    start = source.end
    source.run("UPDATE t SET id = id + 10, c = 1 WHERE id > 1", "UPDATE t SET c = 2 WHERE id = 12")
    write(sink, *source.deliveries(start))
    assert rows(target, "t") == source.rows("t")
    assert {r for (r,) in target.execute("SELECT length(a) FROM t")} == {4000}


@pytest.mark.parametrize("full", [True, False])
def test_a_whole_row_that_changes_its_key_in_one_piece_leaves_nothing_behind(
    target: psycopg.Connection[Any], make: Make, full: bool
) -> None:
    """Decoders send it in two pieces; a processor may make it one."""
    rows_ = [{"id": i, "name": f"n{i}", "note": "x"} for i in range(1, 6)]
    sink = make()
    write(sink, delivery_of(changes(T, *[(Op.INSERT, None, row) for row in rows_])))

    def moved(old: int, new: int) -> tuple[Op, dict[str, Any], dict[str, Any]]:
        return Op.UPDATE, rows_[old - 1] if full else {"id": old}, {"id": new, "name": f"was {old}", "note": "y"}

    mixed = [
        moved(1, 11),
        (Op.UPDATE, rows_[1], {"id": 2, "name": "same key", "note": "z"}),
        moved(3, 1),
        moved(4, 3),
        (Op.DELETE, {"id": 5}, None),
    ]
    write(sink, delivery_of(changes(T, *mixed, first=5), start=5))
    found = target.execute("SELECT * FROM t ORDER BY id").fetchall()
    assert found == [(1, "was 3", "y"), (2, "same key", "z"), (3, "was 4", "y"), (11, "was 1", "y")]
    beside = (Op.UPDATE, {"id": 3}, {"id": 33, "name": "not whole"})
    write(sink, delivery_of(changes(T, moved(2, 22), beside, moved(1, 2), first=10, unchanged={1: ["note"]}), start=10))
    found = target.execute("SELECT * FROM t ORDER BY id").fetchall()
    assert found == [(2, "was 1", "y"), (11, "was 1", "y"), (22, "was 2", "y"), (33, "not whole", "y")]


@pytest.mark.parametrize(("kind", "old", "new"), [("numeric", "1.0", "1.00"), ("interval", "1 day", "24:00:00")])
def test_a_key_that_is_written_anew_in_another_way_is_there(
    target: psycopg.Connection[Any], make: Make, kind: str, old: str, new: str
) -> None:
    """The source deletes one and inserts the other; for PostgreSQL they are the same."""
    table = structure("t", column("id", kind, pa.string(), nullable=False), NAME)
    others = [(Op.INSERT, None, {"id": f"{i} days" if kind == "interval" else str(i)}) for i in range(2, 80)]
    own = [(Op.INSERT, None, {"id": old}), (Op.DELETE, {"id": old}, None), (Op.INSERT, None, {"id": new, "name": "b"})]
    write(make(), delivery_of(changes(table, *own, *others)))
    assert target.execute("SELECT name FROM t WHERE name IS NOT NULL").fetchall() == [("b",)]
    assert target.execute("SELECT count(*) FROM t").fetchone() == (79,)


def test_keys_that_are_one_at_the_target_are_refused_and_not_tried_again(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (id numeric PRIMARY KEY, name text)")
    table = structure("t", column("id", "text", pa.string(), nullable=False), NAME)
    both = changes(table, *[(Op.INSERT, None, {"id": text_, "name": text_}) for text_ in ("1.0", "1.00")])
    with pytest.raises(Refused, match="cardinality violation") as caught:
        make().write(delivery_of(both))
    assert "Two keys of the source may be one at the target" in caught.value.fix
    assert rows(target, "t") == []


def test_a_change_without_its_key_is_poison_and_not_nothing(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute("CREATE TABLE t (id bigint, name text, note text, UNIQUE (id))")
    sink = make()
    write(sink, delivery_of(changes(T, (Op.INSERT, None, {"id": 1, "name": "a"}))))
    odd = [(Op.DELETE, {"name": "a"}, None), (Op.UPDATE, None, {"name": "b"}), (Op.UPDATE, {"id": 1}, {"name": "c"})]
    block = changes(T, *odd, first=1, unchanged={2: ["id", "note"]})
    with pytest.raises(Poisoned, match="the key has no value") as caught:
        sink.write(delivery_of(block, start=1))
    assert set(caught.value.reasons) == {1, 2}
    write(sink, delivery_of(block, start=1).without([1, 2]))
    assert rows(target, "t", "id, name") == [("(1,c)",)]


def test_an_incomplete_change_of_a_row_that_is_not_there_is_poison_and_not_a_row_with_nulls(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, c int)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, repeat('secret', 2000), 0 FROM generate_series(1, 3) i",
    )
    source.blocks()
    start = source.end  # the rows themselves are not delivered
    source.run("UPDATE t SET c = 1 WHERE id = 2", "UPDATE t SET a = 'whole' WHERE id = 3")
    (delivery,) = source.deliveries(start)
    with pytest.raises(Poisoned) as caught:
        make().write(delivery)
    assert list(caught.value.reasons) == [start]
    assert "does not bring all of its columns" in str(caught.value)
    write(make(), delivery.without(caught.value.reasons))
    assert rows(target, "t", "id, a") == [("(3,whole)",)]


def test_truncate_empties_the_table_at_its_place_among_the_changes(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", "TRUNCATE t")
    source.run("INSERT INTO t VALUES (2), (3)", "SELECT pg_logical_emit_message(true, 'not', 'a row')")
    assert write(make(), *source.deliveries()) == 6
    assert rows(target, "t") == [("(2)",), ("(3)",)]
