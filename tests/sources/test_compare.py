"""A source compares its own positions; nobody else may."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.errors import ConfigError
from tidemill.model.position import Ordering, Position
from tidemill.sources.mariadb import MariadbConfig, MariadbSource
from tidemill.sources.mysql import MysqlConfig, MysqlSource
from tidemill.sources.postgres import PostgresConfig, PostgresSource
from tidemill.sources.sqlite import SqliteFileConfig, SqliteSource
from tidemill.sources.turso import TursoConfig, TursoSource

AnySource = PostgresSource | MysqlSource | SqliteSource | TursoSource
A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4f22fa47-71ca-11e1-9e33-c80aa9429562"
POSTGRES = PostgresSource(PostgresConfig(id="p", dsn="postgresql://127.0.0.1:9/d"))
MYSQL = MysqlSource(MysqlConfig(id="m", dsn="mysql://u@127.0.0.1:9/d"))
MARIADB = MariadbSource(MariadbConfig(id="r", dsn="mysql://u@127.0.0.1:9/d"))
SQLITE = SqliteSource(SqliteFileConfig(id="s", path=Path("absent.db")))
TURSO = TursoSource(TursoConfig(id="t", path=Path("absent.db")))
FILE, OTHER = "0123456789abcdef", "fedcba9876543210"
REVERSED = {Ordering.BEFORE: Ordering.AFTER, Ordering.AFTER: Ordering.BEFORE, Ordering.SAME: Ordering.SAME, None: None}


@pytest.mark.parametrize(
    ("source", "a", "b", "expected"),
    [
        (POSTGRES, "9/FF", "10/0", Ordering.BEFORE),  # as text it would be after
        (POSTGRES, "16/b374d848", "16/B374D848", Ordering.SAME),
        (MYSQL, f"{A}:1-9", f"{A}:1-10", Ordering.BEFORE),
        (MYSQL, f"{A}:1-9", f"{A}:1-9,{B}:1", Ordering.BEFORE),
        (MYSQL, f"{A}:1-9,{B}:1", f"{B}:1,{A}:1-9", Ordering.SAME),
        (MYSQL, f"{A}:1-9#binlog.000003:7/5@{A}", f"{A}:1-9", Ordering.SAME),
        (MYSQL, "empty", f"{A}:1", Ordering.BEFORE),
        (MYSQL, f"{A}:1-9", f"{A}:1-8,{B}:1", None),
        (MYSQL, f"{A}:1-9", f"binlog.000003:1547@{A}", None),
        (MYSQL, "binlog.999999:1547", "binlog.1000000:4", Ordering.BEFORE),
        (MYSQL, f"binlog.000003:1547/17@{A}", f"binlog.000003:200/17@{A}", Ordering.AFTER),
        (MYSQL, f"binlog.000003:1547@{A}", "binlog.000003:1547", Ordering.SAME),
        (MYSQL, f"binlog.000003:1547@{A}", f"binlog.000003:1547@{B}", None),
        (MYSQL, f"binlog.000003:1547/17@{A}", f"binlog.000003:1547/18@{A}", None),
        (MYSQL, "binlog.000003:1547", "other.000004:4", None),
        (MYSQL, "0-1-9", "0-1-10", Ordering.BEFORE),  # `mysql` takes either kind of server
        (MARIADB, "0-1-9", "0-1-10", Ordering.BEFORE),
        (MARIADB, "0-1-9", "0-1-9,1-1-1", Ordering.BEFORE),
        (MARIADB, "0-1-9,1-1-1", "0-1-8,1-1-2", None),
        (MARIADB, "0-1-9", "0-2-9", None),
        (MARIADB, "mariadb-bin.000003:4", "mariadb-bin.000004:4", Ordering.BEFORE),
        (SQLITE, f"9@{FILE}", f"10/1763365136123@{FILE}", Ordering.BEFORE),
        (SQLITE, f"9@{FILE}", f"9/1763365136123@{FILE}", Ordering.SAME),
        (SQLITE, f"9/1763365136124@{FILE}", f"9/1763365136123@{FILE}", None),
        (SQLITE, f"9@{FILE}", f"10@{OTHER}", None),
        (TURSO, "9@1794902931", "10@1794902931", Ordering.BEFORE),
        (TURSO, "9@1794902931", "9@1794902931", Ordering.SAME),
        (TURSO, "9@1794902931", "9@1794902932", None),
    ],
)
def test_positions_stand_before_or_after_each_other_or_cannot_be_compared(
    source: AnySource, a: str, b: str, expected: Ordering | None
) -> None:
    assert source.compare(Position(a), Position(b)) is expected
    assert source.compare(Position(b), Position(a)) is REVERSED[expected]


@pytest.mark.parametrize(
    ("source", "text"),
    [(POSTGRES, f"{A}:1"), (MYSQL, "16/B374D848"), (MARIADB, f"{A}:1"), (SQLITE, "9"), (TURSO, "9/1")],
)
def test_what_is_no_position_of_the_source_is_an_error(source: AnySource, text: str) -> None:
    with pytest.raises(ConfigError, match="position"):
        source.compare(Position(text), Position(text))
