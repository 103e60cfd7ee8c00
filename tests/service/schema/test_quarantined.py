"""What waited in quarantine ends as if it had not waited: one script of statements, run with each change made at once,
and with the table in quarantine, which an operator lets go change by change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import seed
from tests.support.mirror import Mirror, open_mirror, until
from tidemill.contracts.schema_change_store import ChangeStatus, Decision
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.run.status import State
from tidemill.service.schema import changes as service
from tidemill.service.schema.barriers import quarantines_of

QUARANTINE = "{policies: [{tables: [public.items], action: quarantine}]}"
SCRIPT = (
    "INSERT INTO items VALUES (2, 'b')",
    "ALTER TABLE items ADD note text",
    "INSERT INTO items VALUES (3, 'c', 'n')",
    "BEGIN; UPDATE items SET name = 'early' WHERE id = 2; ALTER TABLE items RENAME name TO title;"
    " UPDATE items SET title = 'late', note = 'l' WHERE id = 3; COMMIT",
    "DELETE FROM items WHERE id = 1",
    "INSERT INTO items VALUES (4, 'd', 'n')",
    "TRUNCATE items",
    "INSERT INTO items VALUES (5, 'e', 'n'), (6, 'f', 'n')",
    "ALTER TABLE items ALTER id TYPE bigint",
    "UPDATE items SET id = 7000000000 WHERE id = 5",
)
LAST = "INSERT INTO items (id, title) VALUES (9, 'last')"
CAPTURES = ("relation", "trigger")


@pytest.fixture
def mirror(tmp_path: Path, spark: Any, postgres18: Postgres) -> Iterator[Mirror]:
    with open_mirror(tmp_path, spark, postgres18) as made:
        yield made


def copy_of(mirror: Mirror, capture: str, ddl: str) -> tuple[list[str], list[Any]]:
    """Columns and rows that the copy has in the end, in the order of names; of a new pipeline over new tables."""
    mirror.db.execute("DROP SCHEMA IF EXISTS copy CASCADE; DROP TABLE items")
    mirror.db.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    mirror.name = f"{mirror.name}x"
    mirror.begin(ddl, source=f"ddl: {{capture: {capture}}}")
    for statement in SCRIPT:
        mirror.db.execute(statement.encode())
    mirror.db.execute(LAST.encode())

    def arrived() -> bool:
        status = mirror.runtime.status(mirror.name)
        assert status.state is State.RUNNING, status.error
        for each in service.list_changes(mirror.pipeline):
            if each.status is ChangeStatus.QUARANTINED and each.decision is Decision.PENDING:
                mirror.decide(each.number, Decision.APPROVED)
        return (9,) in mirror.rows("copy", "id") and not any(each.is_open for each in quarantines_of(mirror.pipeline))

    until(arrived)
    assert set(mirror.statuses()) == {ChangeStatus.APPLIED}
    mirror.runtime.remove(mirror.name)
    names = sorted(mirror.columns())
    return names, mirror.rows("copy", ", ".join(names))


@pytest.mark.parametrize("capture", seed.choose("quarantined", CAPTURES))
def test_a_table_that_waited_ends_as_one_that_did_not(mirror: Mirror, capture: str) -> None:
    at_once = copy_of(mirror, capture, "{}")
    mirror.processors = "[{type: filter, id: some, where: {field: id, gt: 0}}]"  # which see a row when it comes
    waited = copy_of(mirror, capture, QUARANTINE)
    assert waited == at_once
    assert waited[1] == mirror.rows("public", ", ".join(waited[0]))
