"""Sources whose server tells changes of tables by event triggers."""

from __future__ import annotations

from typing import Any

import orjson

from tests.sources.statements import DDL
from tests.sources.support import config
from tidemill.sources.postgres import PostgresConfig

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
TRIGGER = {"ddl": {"capture": "trigger"}}


def triggered(dsn: str, *tables: str, **options: Any) -> PostgresConfig:
    return config(dsn, *tables, **{**TRIGGER, **options})


def changes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [change for row in rows if row["op"] == DDL for change in orjson.loads(row["ddl"])["changes"] or ()]
