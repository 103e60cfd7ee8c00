"""Servers that are away, busy or changed by somebody; what `doctor` says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.sinks.benches import ID, T
from tests.sinks.postgres.support import Make, delivery_of, numbers, write
from tests.support.blocks import make_block, make_table
from tests.support.changes import changes, column, structure
from tests.support.origin import rows
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Refused, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.sinks.postgres.write import Applier


def test_settings_of_the_role_do_not_weaken_what_a_receipt_says(
    target: psycopg.Connection[Any], postgres: Postgres, make: Make
) -> None:
    role = f"lax_{next(numbers)}"
    target.execute(
        f"CREATE ROLE {role} SUPERUSER LOGIN; ALTER ROLE {role} SET synchronous_commit = off;"
        f"ALTER ROLE {role} SET default_transaction_isolation = serializable;"
        f"ALTER ROLE {role} SET DateStyle = 'SQL'".encode()
    )
    try:
        sink = make(dsn=postgres.dsn(target.info.dbname, role))
        write(sink, delivery_of(make_block(1)))
        db = sink._connection()
        names = ("synchronous_commit", "transaction_isolation", "DateStyle")
        found = [db.execute("SELECT current_setting(%s)", [n]).fetchone()[0] for n in names]  # type: ignore[index]
        assert found == ["on", "read committed", "ISO, YMD"]
        assert "tcp_user_timeout" in db.info.get_parameters()
        sink.close()
    finally:
        target.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


def test_rows_that_wait_for_their_window_are_bounded_by_bytes(
    target: psycopg.Connection[Any], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[int] = []
    apply = Applier.apply

    def watched(self: Applier, to: Any, stretches: Any) -> None:
        applied.append(sum(stretch.all().nbytes for stretch in stretches))
        apply(self, to, stretches)

    monkeypatch.setattr(Applier, "apply", watched)
    monkeypatch.setattr("tidemill.sinks.postgres.windows._MOST_BYTES", 1 << 20)
    large = structure("t", column("id", "bigint", pa.int64(), nullable=False), column("v", "text", pa.string()))
    blocks = [changes(large, (Op.INSERT, None, {"id": i, "v": "x" * 300_000}), first=i) for i in range(12)]
    write(make(), delivery_of(*blocks))
    assert len(applied) == 3
    assert max(applied) < 2 << 20
    assert len(rows(target, "public.t", "id")) == 12


def test_a_server_that_is_away_is_worth_a_retry_and_a_wrong_login_is_not(postgres: Postgres, make: Make) -> None:
    with pytest.raises(DeliveryError, match="cannot be reached") as away:
        make(dsn="postgresql://u:hush@127.0.0.1:9/d", connect_timeout_seconds=2).write(delivery_of(make_block(1)))
    assert is_retryable(away.value)
    with pytest.raises(Refused, match="refused the login") as refused:
        make(dsn=postgres.dsn("postgres", "nobody", "hush")).write(delivery_of(make_block(1)))
    assert "hush" not in str(away.value) + str(refused.value)


def test_a_table_that_was_changed_by_somebody_is_looked_at_again(target: psycopg.Connection[Any], make: Make) -> None:
    sink = make()
    write(sink, delivery_of(changes(T, (Op.INSERT, None, {"id": 1, "name": "a", "note": "n"}))))
    target.execute("ALTER TABLE t DROP COLUMN note")
    write(sink, delivery_of(changes(T, (Op.INSERT, None, {"id": 2, "name": "b", "note": "n"}), first=1), start=1))
    assert target.execute("SELECT id, note FROM t ORDER BY id").fetchall() == [(1, None), (2, "n")]
    target.execute("DROP TABLE t")
    write(sink, delivery_of(changes(T, (Op.INSERT, None, {"id": 3, "name": "c", "note": "n"}), first=2), start=2))
    assert rows(target, "t", "id") == [("(3)",)]
    careful = make(create_tables=False)
    write(careful, delivery_of(changes(T, (Op.INSERT, None, {"id": 4}), first=3), start=3))
    target.execute("ALTER TABLE t DROP COLUMN note")
    with pytest.raises(Refused, match="lacks changes of the source"):
        careful.write(delivery_of(changes(T, (Op.INSERT, None, {"id": 5}), first=4), start=4))


def test_what_only_an_operator_can_mend_is_refused_with_its_name(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, name text, note text);"
        "CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO gone VALUES (1); RETURN NEW; END';"
        "CREATE TRIGGER log BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION log()"
    )
    sink = make()
    for _ in range(2):
        with pytest.raises(Refused, match=r"undefined table \(SQLSTATE 42P01\)") as caught:
            sink.write(delivery_of(changes(T, (Op.INSERT, None, {"id": 1}))))
        assert not is_retryable(caught.value)
        assert "Triggers may name what is gone" in caught.value.fix


def test_a_server_that_takes_no_writes_for_a_while_is_worth_a_retry(
    target: psycopg.Connection[Any], make: Make
) -> None:
    block = delivery_of(changes(T, (Op.INSERT, None, {"id": 1})))
    target.execute(f"ALTER DATABASE {target.info.dbname} SET default_transaction_read_only = on".encode())
    sink = make()
    with pytest.raises(DeliveryError, match="the server takes no writes") as caught:
        sink.write(block)
    assert is_retryable(caught.value)
    target.execute(f"ALTER DATABASE {target.info.dbname} RESET default_transaction_read_only".encode())
    assert write(sink, block) == 1


def test_truncate_empties_a_table_that_foreign_keys_point_to(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, name text, note text);"
        "CREATE TABLE c (id bigint PRIMARY KEY, t bigint REFERENCES t DEFERRABLE INITIALLY DEFERRED)"
    )
    child = structure("c", ID, column("t", "bigint", pa.int64()))
    sink = make()
    filled = changes(T, (Op.INSERT, None, {"id": 1}), (Op.INSERT, None, {"id": 2}))
    write(sink, delivery_of(filled, changes(child, (Op.INSERT, None, {"id": 1, "t": 2}), first=2)))
    emptied = changes(T, (Op.TRUNCATE, None, None), first=3)
    with pytest.raises(DeliveryError, match="foreign keys of the target are not kept") as caught:
        sink.write(delivery_of(emptied, start=3))
    assert is_retryable(caught.value)  # the other table may be emptied by another lane
    write(sink, delivery_of(emptied, changes(child, (Op.TRUNCATE, None, None), first=4), start=3))
    assert (rows(target, "t"), rows(target, "c")) == ([], [])


def test_a_connection_that_breaks_in_the_middle_leaves_nothing_behind(
    target: psycopg.Connection[Any], make: Make
) -> None:
    sink = make()
    write(sink, delivery_of(make_block(1)))

    def broken() -> Iterator[Block]:
        yield make_block(2, table=make_table(), first_id=5, offsets=(5, 6))
        target.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidemill'")

    with pytest.raises(DeliveryError) as caught:
        sink.write(Delivery("shop", "orders", 5, 7, 0, 1, broken))
    assert is_retryable(caught.value)
    sink.close()
    assert target.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    write(sink, delivery_of(make_block(2, first_id=5, offsets=(5, 6)), start=5, end=7))
    assert target.execute("SELECT count(*) FROM orders").fetchone() == (3,)


def test_doctor_names_what_is_missing(target: psycopg.Connection[Any], postgres: Postgres, make: Make) -> None:
    assert all(check.outcome is Outcome.PASS for check in make().doctor())
    write(make(), delivery_of(make_block(1)))
    assert [c.detail for c in make().doctor() if c.name == "known tables"] == ["1"]
    role = f"reader_{next(numbers)}"
    target.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON tidemill_tables TO {role}".encode())
    try:
        poor = make(dsn=postgres.dsn(target.info.dbname, role))
        found = {check.name: check for check in poor.doctor()}
        assert (found["state"].outcome, found["public.orders"].outcome) == (Outcome.FAIL, Outcome.FAIL)
        with pytest.raises(Refused, match="PostgreSQL does not allow it"):
            poor.write(delivery_of(make_block(1, offsets=[1]), start=1))
        poor.close()
    finally:
        target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    (away,) = make(dsn="postgresql://127.0.0.1:9/d").doctor()
    assert (away.name, away.outcome) == ("server", Outcome.FAIL)
