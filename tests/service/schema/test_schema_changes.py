"""Schema changes from a real source to a real sink: barrier, policies and gate, with Spark in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support import seed
from tests.support.mirror import Mirror, open_mirror, until
from tidemill.contracts.schema_change_store import ChangeStatus, Decision
from tidemill.errors import ConfigError, LifecycleError
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.cause import Cause
from tidemill.service.run.status import State
from tidemill.service.schema import changes as service
from tidemill.state import open_installation

SENSING = """
  schema_sensing:
    enabled: true
    sampling: {{sample_rate: 1}}
    drift: {{sink: {{type: files, config: {{id: drift, path: {directory}/drift}}}}}}"""
DRIFT = {("undeclared_column", "note"), ("undeclared_column", "title"), ("missing_column", "name")}


@pytest.fixture
def mirror(tmp_path: Path, spark: Any, postgres18: Postgres) -> Iterator[Mirror]:
    with open_mirror(tmp_path, spark, postgres18) as made:
        yield made


def test_with_triggers_the_copy_follows_renames_that_nobody_waited_for(mirror: Mirror) -> None:
    """The catalog is far ahead of the stream: without triggers each of these would be a drop and an add."""
    pipeline = mirror.begin(sink="allow_destructive_ddl: true", source="ddl: {capture: trigger}")
    with mirror.db.transaction():
        mirror.db.execute("INSERT INTO items VALUES (2, 'b')")
        mirror.db.execute("ALTER TABLE items RENAME name TO title")
        mirror.db.execute("INSERT INTO items VALUES (3, 'c')")
        mirror.db.execute("ALTER TABLE items ADD n int NOT NULL DEFAULT 5")
    mirror.db.execute("CREATE INDEX ON items (title)")
    mirror.arrives(3)
    mirror.runtime.remove(mirror.name)
    for statement in (
        "ALTER TABLE items RENAME title TO label",
        "UPDATE items SET label = 'later' WHERE id = 1",
        "ALTER TABLE items RENAME n TO title",
        "ALTER TABLE items RENAME label TO n",
        "INSERT INTO items (id, n, title) VALUES (4, 'd', 4)",
        "COMMENT ON TABLE items IS 'all of them'",
        "ALTER TABLE items ALTER title TYPE bigint",
        "INSERT INTO items (id, n, title) VALUES (5, 'e', 5000000000)",
    ):
        mirror.db.execute(statement.encode())
    mirror.runtime.add(pipeline)
    mirror.runtime.start(mirror.name)
    mirror.arrives(5)
    assert mirror.rows("copy", "id, n, title") == mirror.rows("public", "id, n, title")
    assert sorted(mirror.columns()) == ["id", "n", "title"]
    found = list(reversed(service.list_changes(pipeline)))
    assert [", ".join(each.kinds) for each in found] == [
        "rename_column", "add_column", "change_index", "rename_column", "rename_column", "rename_column",
        "change_comment", "change_type",
    ]  # fmt: skip
    assert found[0].text == "ALTER TABLE items RENAME name TO title"
    assert set(mirror.statuses()) == {ChangeStatus.APPLIED}
    assert all(not outcome.statements for outcome in found[2].outcomes.values())  # nothing is made of an index


def test_the_gate_holds_a_change_over_a_restart_until_one_decision_lets_it_pass(mirror: Mirror) -> None:
    mirror.begin("{gate: true, approvers_note: required, policies: [{kinds: [drop_column], action: halt}]}")
    mirror.db.execute("ALTER TABLE items ADD note text DEFAULT 'd'")
    mirror.db.execute("INSERT INTO items VALUES (2, 'b', 'n')")
    mirror.waits()
    (notice,) = [each for each in mirror.runtime.status(mirror.name).notices if each["code"] == "ddl-waiting"]
    assert 'copy: ALTER TABLE "copy"."items" ADD COLUMN "note" text' in notice["what"]
    mirror.runtime.drain(mirror.name, seconds=3600)  # as SIGTERM does: what waits for a person is left
    assert (mirror.runtime.status(mirror.name).state, mirror.statuses()) == (State.STOPPED, [ChangeStatus.PENDING])
    mirror.again()
    mirror.waits()
    assert (mirror.columns(), mirror.statuses()) == (["id", "name"], [ChangeStatus.PENDING])
    with pytest.raises(ConfigError, match="needs a reason"):
        mirror.decide(1, Decision.APPROVED, Cause("ann"))
    with pytest.raises(ConfigError, match="no schema change 2") as unknown:
        mirror.decide(2, Decision.APPROVED)
    assert unknown.value.fix == "There are: 1."
    mirror.decide(1, Decision.APPROVED)
    mirror.arrives(2)
    assert mirror.rows("copy") == mirror.rows("public")
    with pytest.raises(LifecycleError, match="is applied already") as twice:
        mirror.decide(1, Decision.REJECTED, Cause("bob", "too late"))
    assert "decided by ann" in twice.value.where
    change = service.show_change(mirror.pipeline, 1)
    assert (change.status, change.actor, change.reason) == (ChangeStatus.APPLIED, "ann", "looked at it")
    trail = open_installation(mirror.pipeline.state_uri)
    assert [(each.actor, each.action, each.detail) for each in trail.audit_trail()] == [
        ("ann", "approve schema change", "1 of public.items: looked at it")
    ]
    trail.close()
    mirror.db.execute("ALTER TABLE items DROP note")
    mirror.db.execute("INSERT INTO items VALUES (3, 'c')")
    mirror.fails("schema-change-halted")
    (planned,) = service.plan_changes(mirror.pipeline)
    assert (planned.table, planned.kinds, planned.action) == ("public.items", ("drop_column",), "halt")
    mirror.decide(2, Decision.APPROVED)
    assert mirror.statuses() == [ChangeStatus.APPLIED, ChangeStatus.APPROVED]
    mirror.runtime.start(mirror.name)
    mirror.arrives(3)
    assert mirror.statuses() == [ChangeStatus.APPLIED, ChangeStatus.APPLIED]
    assert service.plan_changes(mirror.pipeline) == []


def test_a_batch_that_cannot_be_delivered_before_a_change_ends_the_barrier_with_what_to_do(mirror: Mirror) -> None:
    mirror.begin("{flush_timeout_seconds: 3}")
    mirror.db.execute(
        "CREATE FUNCTION copy.refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$"
    )
    mirror.db.execute("CREATE TRIGGER refuse BEFORE INSERT ON copy.items FOR EACH ROW EXECUTE FUNCTION copy.refuse()")
    mirror.db.execute("INSERT INTO items VALUES (2, 'b')")
    mirror.db.execute("ALTER TABLE items ADD note text")
    mirror.db.execute("INSERT INTO items VALUES (3, 'c', 'n')")
    mirror.fails("barrier-not-reached")
    error = mirror.runtime.error(mirror.name)
    assert error is not None
    assert "a schema change waits at offset 2" in error.what
    assert "within 3 seconds" in error.what
    assert "flush_timeout_seconds" in error.fix
    assert (mirror.rows("copy"), mirror.columns(), mirror.statuses()) == ([(1, "a")], ["id", "name"], [])
    mirror.db.execute("DROP TRIGGER refuse ON copy.items")
    mirror.again()
    mirror.arrives(3)
    assert mirror.rows("copy") == mirror.rows("public")


def test_a_gate_that_nobody_opens_in_time_stops_and_a_decision_on_the_stopped_pipeline_lets_it_go_on(
    mirror: Mirror,
) -> None:
    """While the change waits rows are still captured; one change that was rejected is followed by one that is made."""
    gate = "{gate: true, gate_timeout_seconds: 2, on_reject: ignore}"
    mirror.begin(gate)
    mirror.db.execute("ALTER TABLE items ADD note text")
    mirror.db.execute("INSERT INTO items VALUES (2, 'b', 'n')")
    mirror.db.execute("ALTER TABLE items ADD extra text")
    mirror.db.execute("INSERT INTO items VALUES (3, 'c', 'n', 'e')")
    mirror.fails("schema-change-halted")
    assert mirror.statuses() == [ChangeStatus.PENDING]
    mirror.decide(1, Decision.REJECTED)
    mirror.again()
    mirror.fails("schema-change-halted")  # at the next one
    assert mirror.statuses() == [ChangeStatus.IGNORED, ChangeStatus.PENDING]
    (planned,) = service.plan_changes(mirror.pipeline)
    assert planned.plans["copy"].statements == ('ALTER TABLE "copy"."items" ADD COLUMN "extra" text',)
    mirror.decide(2, Decision.APPROVED)
    mirror.again()
    mirror.arrives(3)
    assert mirror.columns() == ["id", "name", "extra"]
    assert mirror.rows("copy") == [(1, "a", None), (2, "b", None), (3, "c", "e")]
    shown = service.show_change(mirror.pipeline, 2)
    assert shown.outcomes["copy"].statements == planned.plans["copy"].statements


IGNORES = {
    "policies": (
        "{policies: [{kinds: [add_column], tables: [public.it%], action: ignore}, {kinds: [rename_column, drop_column],"
        " action: ignore}]}",
        "",
        "[]",
    ),
    "capture off": ("{}", "ddl: {capture: off}", "[]"),
    "capture off, with processors": (
        "{}", "ddl: {capture: off}",
        "[{type: filter, id: some, where: {field: id, gt: 0}}, {type: drop, id: less, columns: [no], missing: ignore}]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", IGNORES if seed.WHOLE else [seed.dice("ignored").choice(list(IGNORES))])
def test_ignored_changes_leave_the_copy_as_it_was_and_later_ones_are_made_on_that(mirror: Mirror, how: str) -> None:
    """What the events have is drift, each sent once to a sink of its own, also over a restart."""
    ddl, source, mirror.processors = IGNORES[how]
    mirror.begin(ddl, "allow_destructive_ddl: true", source, sensing=SENSING.format(directory=mirror.directory))
    execute = mirror.db.execute
    execute("ALTER TABLE items ADD note text")
    execute("INSERT INTO items VALUES (2, 'b', 'n')")
    execute("ALTER TABLE items RENAME name TO title")
    execute("INSERT INTO items VALUES (3, 'c', 'n')")
    mirror.arrives(3)
    assert mirror.columns() == ["id", "name"]
    until(lambda: {(each["kind"], each["subject"]) for each in mirror.drift()} >= DRIFT)
    mirror.again()  # what sinks see of tables survives a restart
    execute("INSERT INTO items VALUES (4, 'd', 'n')")
    execute("ALTER TABLE items DROP note")
    execute("UPDATE items SET title = 'A' WHERE id = 1")
    execute("ALTER TABLE items DROP title")
    execute("UPDATE items SET id = 20 WHERE id = 2")
    execute("INSERT INTO items VALUES (5)")
    mirror.arrives(5)
    assert mirror.columns() == ["id", "name"]
    assert mirror.rows("copy") == [(1, "A"), (3, "c"), (4, "d"), (5, None), (20, None)]
    assert set(mirror.statuses()) == {ChangeStatus.IGNORED}
    with closing(mirror.pipeline.build_state()) as state:
        until(lambda: not state.sensing.drift_events(mirror.name))
    drift = mirror.drift()
    assert [each["number"] for each in drift] == list(range(1, len(drift) + 1))
    assert len({(each["kind"], each["subject"]) for each in drift}) == len(drift)


TRIGGERS = ["micro_batch", "real_time"]


@pytest.mark.parametrize("trigger", TRIGGERS if seed.WHOLE else [seed.dice("quarantine").choice(TRIGGERS)])
def test_a_table_in_quarantine_waits_over_a_restart_and_catches_up_while_others_go_on(
    mirror: Mirror, trigger: str
) -> None:
    mirror.tables, mirror.trigger = "public.items, public.others", trigger
    mirror.db.execute("CREATE TABLE others (id int PRIMARY KEY, at text)")
    mirror.begin("{policies: [{tables: [public.items], action: quarantine}]}")
    mirror.db.execute("ALTER TABLE items ADD COLUMN note text")
    mirror.db.execute("INSERT INTO items VALUES (2, 'b', 'n')")

    def others(id: int) -> None:
        mirror.db.execute(f"INSERT INTO others VALUES ({id}, 'x')".encode())
        there = f"SELECT 1 FROM copy.others WHERE id = {id}".encode()
        until(lambda: mirror.db.execute("SELECT to_regclass('copy.others')").fetchone() != (None,))
        until(lambda: mirror.db.execute(there).fetchone())

    others(1)
    mirror.db.execute("UPDATE items SET name = 'bb', note = 'changed' WHERE id = 2; DELETE FROM items WHERE id = 1")
    others(2)
    until(lambda: [each.events for each in mirror.runtime.status(mirror.name).quarantined] == [4])
    status = mirror.runtime.status(mirror.name)
    assert (status.quarantined[0].table, status.quarantined[0].decided) == ("public.items", False)
    (notice,) = (each for each in status.notices if each["code"] == "ddl-quarantined")
    assert "schema change 1 (add column) waits for a decision: 4 events" in notice["what"]
    assert (mirror.rows("copy"), mirror.statuses()) == ([(1, "a")], [ChangeStatus.QUARANTINED])
    mirror.decide(1, Decision.APPROVED)
    mirror.db.execute("INSERT INTO items VALUES (3, 'c', 'n')")
    mirror.arrives(3)
    assert mirror.rows("copy") == mirror.rows("public") == [(2, "bb", "changed"), (3, "c", "n")]
    until(lambda: not mirror.runtime.status(mirror.name).quarantined)
    assert mirror.statuses() == [ChangeStatus.APPLIED]
    mirror.db.execute("ALTER TABLE items ADD COLUMN extra text")
    mirror.db.execute("INSERT INTO items VALUES (4, 'd', 'n', 'e')")
    until(lambda: mirror.runtime.status(mirror.name).quarantined)
    others(3)
    mirror.again("{}")  # no policy keeps it any more
    mirror.arrives(4)
    assert mirror.rows("copy") == mirror.rows("public")
    assert [each.actor for each in service.list_changes(mirror.pipeline)] == ["policy", "ann"]
