"""A capture whose publication is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sources.support import config, execute, query
from tests.support.capturing import Running, capturing, eventually
from tidemill.contracts import Notice
from tidemill.model.block import Op
from tidemill.sources.postgres import PostgresSource


class Watched:
    """A pipeline that captures `tables` of a database, runs when it is told to, and is looked at every moment."""

    def __init__(self, dsn: str, directory: Path, *tables: str, **options: Any) -> None:
        self.dsn, self.directory = dsn, directory
        self.config = config(dsn, *tables, **{"catalog_seconds": 0.05} | options)
        self.source = PostgresSource(self.config)

    @contextmanager
    def running(self) -> Iterator[Running]:
        self.source = PostgresSource(self.config)
        with capturing(self.source, self.directory) as run:
            eventually(lambda: self.source.began, run)
            yield run

    def notices(self, code: str = "") -> list[Notice]:
        return [notice for notice in self.source.notices() if code in notice.code]

    def notice(self, code: str, subject: str, words: str = "") -> Notice:
        found = [n for n in self.notices(code) if n.subject == subject and words in n.what]
        assert len(found) <= 1
        return found[0] if found else eventually(lambda: self._notice(code, subject, words))

    def _notice(self, code: str, subject: str, words: str) -> Notice | None:
        return next((n for n in self.notices(code) if n.subject == subject and words in n.what), None)

    def looked(self) -> None:
        """What is so now has been seen: a look that began after this call has ended."""
        seen = self.source._watch
        before = seen.looks
        eventually(lambda: seen.looks >= before + 2)

    def look(self) -> None:
        before = self.source._watch.looks
        self.source._watch.hint()
        eventually(lambda: self.source._watch.looks > before)

    def execute(self, *statements: str) -> None:
        execute(self.dsn, *statements)

    def members(self) -> set[str]:
        return {name for (name,) in query(self.dsn, "SELECT tablename FROM pg_publication_tables")}


Make = Callable[..., Watched]

# Catalogs and watch are the same for every version, the WAL sender is not: what depends on it says so.
each_version = pytest.mark.parametrize("postgres", ["18", "15"], ids=["pg18", "pg15"], indirect=True)


def ids(run: Running, table: str = "public.t") -> list[int]:
    return [row["after"]["id"] for row in run.rows() if row["table"].endswith(table) and row["op"] == Op.INSERT]


TABLE = "CREATE TABLE t (id int PRIMARY KEY)"

TREE = (
    "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
)
