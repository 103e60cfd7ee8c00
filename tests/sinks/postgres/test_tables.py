"""Tables at the target: made, changed as the source's change, or refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.sinks.benches import ID, NAME, T
from tests.sinks.postgres.support import Make, delivery_of, numbers, types, write
from tests.support.blocks import make_block, make_table
from tests.support.changes import changes, column, structure
from tests.support.origin import rows
from tidemill.errors import Poisoned, Refused
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import Block, Op
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm


def test_tables_that_would_hide_or_redirect_rows_are_refused(
    target: psycopg.Connection[Any], postgres: Postgres, make: Make
) -> None:
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name text, note text)")
    block = changes(T, (Op.DELETE, {"id": 1}, None))
    target.execute("CREATE RULE never AS ON DELETE TO t DO INSTEAD NOTHING")
    with pytest.raises(Refused, match=r"public\.t has the rule never"):
        make().write(delivery_of(block))
    target.execute("DROP RULE never ON t")
    target.execute("CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(Refused, match=r"public\.v is no table"):
        make(table="v").write(delivery_of(block))
    role = f"limited_{next(numbers)}"
    target.execute(
        f"CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON t TO {role};"
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON t USING (id > 9)".encode()
    )
    try:
        target.execute("INSERT INTO t VALUES (1)")
        limited = make(dsn=postgres.dsn(target.info.dbname, role))
        with pytest.raises(Refused, match="PostgreSQL does not allow it") as caught:
            limited.write(delivery_of(block))
        assert "BYPASSRLS" in caught.value.fix
        limited.close()
    finally:
        target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_names_that_must_be_quoted_and_columns_in_another_order_change_nothing(
    target: psycopg.Connection[Any], make: Make
) -> None:
    names = ("Id", "select", 'a "quoted" name', "a.b", "größe", "100%")
    table = structure("Order Lines", *(column(n, "text", pa.string(), nullable=n != "Id") for n in names), key=("Id",))
    reverse = ", ".join('"{}" text'.format(n.replace('"', '""')) for n in names[::-1])
    target.execute(f'CREATE TABLE "Order Lines" (own int DEFAULT 5, {reverse}, PRIMARY KEY ("Id"))'.encode())
    target.execute("""CREATE TYPE mood AS ENUM ('sad', 'Ok, "so"'); ALTER TABLE "Order Lines" ADD "Moods" mood[]""")
    table = dataclasses.replace(
        table, columns=(*table.columns, column("Moods", "public.mood[]", pa.list_(pa.string())))
    ).with_fingerprint()
    row = {n: f"{n} of 1" for n in names} | {"Moods": ["sad", None, 'Ok, "so"']}
    sink = make()
    write(sink, delivery_of(changes(table, (Op.INSERT, None, row), (Op.INSERT, None, row | {"Id": "2"}))))
    part = {"Id": "2", "select": "new"}
    rest = [n for n in (*names, "Moods") if n not in part]
    gone = (Op.DELETE, {"Id": row["Id"]}, None)
    write(sink, delivery_of(changes(table, gone, (Op.UPDATE, None, part), first=2, unchanged={1: rest}), start=2))
    listed = ", ".join('"{}"'.format(n.replace('"', '""')) for n in names)
    found = target.execute(f'SELECT own, "Moods"::text[], {listed} FROM "Order Lines"'.encode()).fetchone()
    assert found == (5, row["Moods"], "2", "new", *[row[n] for n in names[2:]])


def test_new_columns_are_added_and_renamed_ones_keep_their_values(target: psycopg.Connection[Any], make: Make) -> None:
    first, second = make_table(), make_table(version=2)
    sink = make()
    write(sink, delivery_of(make_block(2, table=first)))
    write(sink, delivery_of(make_block(2, table=second, first_id=2, offsets=(2, 3)), start=2))
    renamed = tuple(Column("remark", c.type) if c.name == "note" else c for c in second.columns)
    third = Table(
        "shop", "public", "orders", renamed, ("id",), version=3, sequence=3, renamed=(("note", "remark"),)
    ).with_fingerprint()
    write(sink, delivery_of(make_block(2, table=third, first_id=4, offsets=(4, 5)), start=4))
    assert target.execute("SELECT id, remark FROM orders ORDER BY id").fetchall() == [
        (0, None), (1, "note 1"), (2, "note 2"), (3, None), (4, None), (5, None),
    ]  # fmt: skip
    write(make(rewind="apply"), delivery_of(make_block(2, table=third, first_id=4, offsets=(4, 5)), start=4))


def _reshaped(table: Table, version: int, **columns: tuple[str, pa.DataType] | None) -> Table:
    """The table with columns of other types, or (None) without them."""
    kept = []
    for one in table.columns:
        change = columns.get(one.name, one)
        if isinstance(change, tuple):
            kept.append(Column(one.name, DataType(change[0], change[1], JsonForm.STRING), one.nullable))
        elif change is not None:
            kept.append(one)
    return Table("shop", "public", "orders", tuple(kept), ("id",), version=version, sequence=version).with_fingerprint()


def test_types_are_widened_and_never_narrowed(target: psycopg.Connection[Any], make: Make) -> None:
    sink = make()
    write(sink, delivery_of(make_block(1)))
    wider = _reshaped(make_table(), 2, quantity=("bigint", pa.int64()), price=("numeric(14,4)", pa.decimal128(14, 4)))
    write(sink, delivery_of(make_block(1, table=wider, first_id=1, offsets=[1]), start=1))
    assert (types(target)["quantity"], types(target)["price"]) == ("bigint", "numeric(14,4)")
    narrower = _reshaped(make_table(), 3, quantity=("smallint", pa.int16()))
    write(sink, delivery_of(make_block(1, table=narrower, first_id=2, offsets=[2]), start=2))
    assert types(target)["quantity"] == "bigint"
    other = _reshaped(make_table(), 4, paid=("date", pa.date32()))
    block = Block(other, make_block(1, table=make_table(), ops=Op.DELETE, offsets=[3]).batch)
    with pytest.raises(Refused, match=r"column paid of public\.orders is boolean and became date"):
        sink.write(delivery_of(block, start=3))


def test_a_dropped_column_stays_unless_destructive_changes_are_allowed(
    target: psycopg.Connection[Any], make: Make
) -> None:
    write(make(), delivery_of(make_block(1)))
    target.execute("ALTER TABLE orders ADD COLUMN mine int DEFAULT 5")
    fewer = _reshaped(make_table(), 2, customer=None)
    write(make(), delivery_of(make_block(1, table=fewer, first_id=1, offsets=[1]), start=1))
    assert target.execute("SELECT id, customer IS NULL FROM orders ORDER BY id").fetchall() == [(0, False), (1, True)]
    least = _reshaped(make_table(), 3, customer=None, note=None)
    sink = make(allow_destructive_ddl=True)
    write(sink, delivery_of(make_block(1, table=least, first_id=2, offsets=[2]), start=2))
    assert {"mine", "customer"} <= types(target).keys()  # dropped before it was allowed, and never the source's
    assert "note" not in types(target)


def test_tables_that_share_a_target_do_not_take_each_others_columns_away(
    target: psycopg.Connection[Any], make: Make
) -> None:
    id_, a, b = (column(n, "bigint", pa.int64(), nullable=n != "id") for n in ("id", "a", "b"))
    one, two = structure("one", id_, a), structure("two", id_, b, version=2)
    for turn in range(2):
        sink = make(table="merged", allow_destructive_ddl=True)
        first = 4 * turn
        blocks = [
            changes(one, (Op.INSERT, None, {"id": first, "a": 1}), first=first),
            changes(two, (Op.INSERT, None, {"id": first + 1, "b": 2}), first=first + 1),
        ]
        write(sink, delivery_of(*blocks, start=first))
    found = target.execute("SELECT id, a, b FROM merged ORDER BY id").fetchall()
    assert found == [(0, 1, None), (1, None, 2), (4, 1, None), (5, None, 2)]


def test_tables_are_not_made_when_that_is_not_wanted(target: psycopg.Connection[Any], make: Make) -> None:
    with pytest.raises(Refused, match=r"public\.orders does not exist"):
        make(create_tables=False).write(delivery_of(make_block(1)))
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    with pytest.raises(Refused, match="lacks changes of the source"):
        make(create_tables=False).write(delivery_of(make_block(1)))
    write(make(), delivery_of(make_block(1)))
    assert len(types(target)) == 8


def test_a_table_without_a_key_is_refused_or_only_grows(target: psycopg.Connection[Any], make: Make) -> None:
    table = make_table(key=(), identity="full")
    with pytest.raises(Refused, match="has no key"):
        make().write(delivery_of(make_block(2, table=table)))
    mixed = make_block(3, table=table, ops=[Op.INSERT, Op.UPDATE, Op.INSERT])
    with pytest.raises(Poisoned, match="cannot be found") as caught:
        make(keyless="append").write(delivery_of(mixed))
    assert list(caught.value.reasons) == [1]
    write(make(keyless="append"), delivery_of(mixed).without([1]))
    assert target.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(0,), (2,)]


def test_a_key_without_a_unique_index_at_the_target_is_refused(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute("CREATE TABLE orders (id bigint)")
    with pytest.raises(Refused, match="no unique index on its key"):
        make().write(delivery_of(make_block(1)))


def test_a_unique_index_may_include_other_columns(target: psycopg.Connection[Any], make: Make) -> None:
    write(make(), delivery_of(make_block(1)))
    target.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    target.execute("CREATE UNIQUE INDEX ON orders (id) INCLUDE (customer)")
    assert write(make(), delivery_of(make_block(1, offsets=[1]), start=1)) == 1


def test_columns_that_the_target_generates_and_columns_of_its_own_are_left_alone(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, mine text DEFAULT 'x', "
        "weight float8 GENERATED ALWAYS AS (id * 2.0) STORED)"
    )
    sink = make()
    write(sink, delivery_of(make_block(2)), delivery_of(make_block(2, ops=Op.UPDATE, offsets=(2, 3)), start=2))
    assert target.execute("SELECT id, mine, weight FROM orders ORDER BY id").fetchall() == [(0, "x", 0), (1, "x", 2)]


def test_a_key_that_the_target_counts_by_itself_has_the_sources_values(
    target: psycopg.Connection[Any], make: Make
) -> None:
    """As in a target that is made from the source's own DDL."""
    target.execute("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, note text)")
    sink = make()
    first = [(Op.INSERT, None, {"id": i, "name": "a", "note": "n"}) for i in (100, 200, 300)]
    write(sink, delivery_of(changes(T, *first)))
    second = [
        (Op.UPDATE, None, {"id": 100, "name": "b", "note": "n"}),
        (Op.DELETE, {"id": 200}, None),
        (Op.INSERT, None, {"id": 400, "name": "new", "note": None}),
        (Op.UPDATE, None, {"id": 300, "name": "c"}),
    ]
    write(sink, delivery_of(changes(T, *second, first=3, unchanged={3: ["note"]}), start=3))
    # All columns but the key unchanged: the row need only be there.
    write(
        sink, delivery_of(changes(T, (Op.UPDATE, None, {"id": 300}), first=7, unchanged={0: ["name", "note"]}), start=7)
    )
    found = target.execute("SELECT id, name, note FROM t ORDER BY id").fetchall()
    assert found == [(100, "b", "n"), (300, "c", "n"), (400, "new", None)]
    moved = changes(T, (Op.UPDATE, {"id": 300}, {"id": 301, "name": "d"}), first=8, unchanged={0: ["note"]})
    with pytest.raises(Poisoned, match="SET GENERATED BY DEFAULT"):
        sink.write(delivery_of(moved, start=8))


def test_a_column_that_the_target_counts_by_itself_is_refused_where_updates_could_not_set_it(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY)")
    counted = structure("t", ID, column("n", "bigint", pa.int64()))
    with pytest.raises(Refused, match=r"column n of public\.t is GENERATED ALWAYS AS IDENTITY") as caught:
        make().write(delivery_of(changes(counted, (Op.INSERT, None, {"id": 1, "n": 77}))))
    target.execute(caught.value.fix.partition(";")[0].encode())
    write(make(), delivery_of(changes(counted, (Op.INSERT, None, {"id": 1, "n": 77}))))
    write(make(), delivery_of(changes(counted, (Op.UPDATE, None, {"id": 1, "n": 78}), first=1), start=1))
    assert rows(target, "t") == [("(1,78)",)]


def test_a_table_without_a_key_takes_the_sources_values_for_what_the_target_counts(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (n bigint GENERATED ALWAYS AS IDENTITY, name text)")
    keyless = structure("t", column("n", "bigint", pa.int64()), NAME, key=())
    write(make(keyless="append"), delivery_of(changes(keyless, (Op.INSERT, None, {"n": 77, "name": "a"}))))
    assert rows(target, "t") == [("(77,a)",)]


def test_names_follow_the_template(target: psycopg.Connection[Any], make: Make) -> None:
    write(make(table="copy_${source.database}.${source.schema}_${source.table}"), delivery_of(make_block(1)))
    assert rows(target, "copy_shop.public_orders", "id") == [("(0)",)]
    write(make(id="other", table="mine"), delivery_of(make_block(1)))
    assert rows(target, "public.mine", "id") == [("(0)",)]
    with pytest.raises(ValueError, match="cannot depend on a row"):
        make(table="t_${after.id}")
    with pytest.raises(ValueError, match="has 3 parts"):
        make(table="a.b.c")
    with pytest.raises(Refused, match="cannot be a name"):
        make(id="long", table="x" * 64).write(delivery_of(make_block(1)))
