"""What a document says of a schema change, and what a sink sees of a table whose changes it leaves out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.config.conftest import PIPELINE
from tests.support import seed
from tests.support.changes import column, structure
from tests.support.components import register
from tidemill import config
from tidemill.config.spec.ddl import Ddl
from tidemill.errors import ConfigError
from tidemill.model.schema_change import SchemaChangeKind as Kind
from tidemill.model.table import Column, Table
from tidemill.schema.changes import change_between, with_unseen
from tidemill.schema.diff import diff
from tidemill.schema.view import TableView
from tidemill.service.schema.barriers import policy_of_changes


def text(name: str) -> Column:
    return column(name, "text", pa.string())


ID, NAME, NOTE = column("id", "integer", pa.int32()), text("name"), text("note")
OLD = structure("t", ID, NAME)
WIDER = structure("t", ID, NAME, NOTE, version=2)
KINDS = (Kind.ADD_COLUMN, Kind.DROP_COLUMN, Kind.RENAME_COLUMN)
RENAMED = replace(structure("t", ID, text("title"), version=2), renamed=(("name", "title"),))


def ddl(**settings: object) -> Ddl:
    return Ddl.model_validate(settings)


def test_the_first_policy_that_names_table_and_kind_counts_and_what_none_names_is_evolved() -> None:
    policy = policy_of_changes(
        ddl(
            policies=[
                {"tables": ["public.other"], "action": "halt"},
                {"kinds": ["add_column"], "action": "ignore"},
                {"tables": ["public.*"], "kinds": ["add_column", "drop_column"], "action": "halt"},
            ]
        )
    )
    assert policy.judge(change_between("s", 1, OLD, WIDER)).action == "ignore"
    assert policy.judge(change_between("s", 1, WIDER, OLD)).action == "halt"
    assert policy.judge(change_between("s", 1, OLD, RENAMED)).action == "evolve"
    assert policy.judge(change_between("s", 1, None, OLD)).action == "evolve"


def test_the_gate_asks_unless_every_kind_is_approved_beforehand_or_ignored() -> None:
    gate = policy_of_changes(ddl(gate=True, auto_approve=["add_column"]))
    assert gate.judge(change_between("s", 1, OLD, WIDER)).action == "evolve"
    assert gate.judge(change_between("s", 1, WIDER, OLD)).action == "ask"
    both = change_between("s", 1, WIDER, structure("t", ID, NAME, text("more"), version=3))
    assert both.kinds == {Kind.ADD_COLUMN, Kind.DROP_COLUMN}
    assert gate.judge(both).asks
    assert policy_of_changes(ddl(gate=True)).judge(change_between("s", 1, None, OLD)).action == "evolve"
    assert policy_of_changes(ddl(gate=True, auto_approve=[])).judge(change_between("s", 1, None, OLD)).asks
    ignoring = policy_of_changes(ddl(gate=True, policies=[{"action": "ignore"}]))
    assert ignoring.judge(change_between("s", 1, OLD, WIDER)).action == "ignore"


def test_a_change_of_the_key_cannot_be_ignored_and_a_new_table_is_always_made() -> None:
    policy = policy_of_changes(ddl(policies=[{"action": "ignore"}]))
    other_key = structure("t", ID, NAME, key=("id", "name"), version=2)
    change = change_between("s", 1, OLD, other_key)
    assert Kind.CHANGE_KEY in change.kinds
    assert policy.judge(change).halting == {Kind.CHANGE_KEY}
    assert policy.judge(change_between("s", 1, None, OLD)).action == "evolve"


def test_a_key_column_that_got_another_name_is_no_change_of_the_key() -> None:
    number = replace(structure("t", column("number", "integer", pa.int32()), NAME, key=("number",), version=2))
    change = change_between("s", 1, OLD, replace(number, renamed=(("id", "number"),)))
    assert change.kinds == {Kind.RENAME_COLUMN}


@pytest.mark.parametrize("action", ["quarantine", "halt"])
def test_waiting_is_for_changes_of_a_table_and_for_a_new_one_only_where_it_is_named(action: str) -> None:
    change, created = change_between("s", 1, OLD, WIDER), change_between("s", 1, None, OLD)
    policy = policy_of_changes(ddl(gate=True, policies=[{"action": action}]))
    assert (policy.judge(change).action, policy.judge(created).action) == (action, "evolve")
    named = policy_of_changes(ddl(policies=[{"kinds": ["create_table"], "action": action}]))
    assert (named.judge(change).action, named.judge(created).action) == ("evolve", action)
    first = policy_of_changes(ddl(policies=[{"kinds": ["add_column"], "action": "halt"}, {"action": "quarantine"}]))
    assert first.judge(change).action == "halt"


def test_a_change_is_not_tried_where_processors_give_rows_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    file = tmp_path / "pipeline.yaml"
    document = f"{PIPELINE}  processors: [{{type: drop, id: slim, columns: [name]}}]\n"
    for action in ("halt", "ignore", "quarantine"):
        file.write_text(f"{document}  ddl: {{gate: true, on_reject: ignore, policies: [{{action: {action}}}]}}\n")
        config.load(file)
    file.write_text(f"{document}  ddl: {{policies: [{{action: try_evolve}}]}}\n")
    with pytest.raises(ConfigError, match="try_evolve needs a pipeline without processors"):
        config.load(file)


def names(view: TableView) -> list[str]:
    return [c.name for c in view.table.columns]


def test_a_view_leaves_out_what_is_ignored_and_follows_the_rest() -> None:
    view = TableView.whole(OLD).follow(WIDER, frozenset({Kind.ADD_COLUMN}))
    assert (names(view), view.origins, view.is_whole) == (["id", "name"], ("id", "name"), False)
    more = structure("t", ID, NAME, NOTE, text("more"), version=3)
    view = view.follow(more, frozenset())
    assert (names(view), view.origins) == (["id", "name", "more"], ("id", "name", "more"))
    narrower = structure("t", ID, NAME, text("more"), version=4)
    assert view.follow(narrower, frozenset()).is_whole, "the column that was left out is gone"


def test_a_dropped_column_stays_without_values_and_a_renamed_one_keeps_its_name() -> None:
    dropped = TableView.whole(WIDER).follow(OLD, frozenset({Kind.DROP_COLUMN}))
    assert (names(dropped), dropped.origins) == (["id", "name", "note"], ("id", "name", None))
    assert dropped.follow(WIDER, frozenset()).is_whole, "it came back under its name"
    renamed = TableView.whole(OLD).follow(RENAMED, frozenset({Kind.RENAME_COLUMN}))
    assert (names(renamed), renamed.origins) == (["id", "name"], ("id", "title"))
    assert TableView.from_dict(renamed.to_dict()) == renamed
    assert TableView.whole(OLD).follow(RENAMED, frozenset()).is_whole


def test_a_column_that_the_source_knew_only_later_is_renamed_in_a_view_too() -> None:
    """PostgreSQL's catalog was ahead when it was met: its number came with the next structure."""

    def numbered(column: Column, number: int) -> Column:
        return replace(column, origin=f"16384.{number}")

    small, large = (column("n", native, kind) for native, kind in (("integer", pa.int32()), ("bigint", pa.int64())))
    first = structure("t", numbered(ID, 1), numbered(small, 2), NOTE)
    second = structure("t", numbered(ID, 1), numbered(large, 2), NOTE, version=2)
    third = structure("t", numbered(ID, 1), numbered(large, 2), numbered(NOTE, 3), text("more"), version=3)
    label = numbered(text("label"), 3)
    last = structure("t", numbered(ID, 1), numbered(large, 2), label, version=4, renamed=[("note", "label")])
    seen = TableView.whole(first).follow(second, frozenset({Kind.CHANGE_TYPE}))
    for known in (seen, seen.follow(third, frozenset())):
        now = known.follow(last, frozenset())
        assert (names(now), now.table.renamed) == (["id", "n", "label"], (("note", "label"),))
        assert [(old.name, new.name) for old, new in diff(known.table, now.table).renamed] == [("note", "label")]


def test_a_renamed_key_column_is_still_the_key_of_the_view() -> None:
    table = structure("t", column("number", "integer", pa.int32()), NAME, key=("number",), version=2)
    view = TableView.whole(OLD).follow(replace(table, renamed=(("id", "number"),)), frozenset({Kind.RENAME_COLUMN}))
    assert (names(view), view.table.key) == (["id", "name"], ("id",))


def test_a_type_that_changed_stays_where_that_is_ignored() -> None:
    other: Table = structure("t", column("id", "bigint", pa.int64()), NAME, version=2)
    view = TableView.whole(OLD).follow(other, frozenset({Kind.CHANGE_TYPE}))
    assert view.table.columns[0].type.native == "integer"
    assert view.origins == ("id", "name")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("rename_table", Kind.RENAME_TABLE), ("default", Kind.CHANGE_DEFAULT), ("index", Kind.CHANGE_INDEX),
        ("comment", Kind.CHANGE_COMMENT),
    ],
)  # fmt: skip
def test_kinds_that_only_a_statement_tells_ask_nobody_and_can_stop_a_pipeline(change: str, kind: Kind) -> None:
    found = with_unseen(change_between("s", 1, OLD, OLD), [{"changes": None}, {"changes": [{"change": change}]}])
    assert found.kinds == {kind}
    assert policy_of_changes(ddl(gate=True)).judge(found).action == "evolve"
    assert policy_of_changes(ddl(policies=[{"kinds": [kind], "action": "halt"}])).judge(found).action == "halt"
    wider = with_unseen(change_between("s", 1, OLD, WIDER), [{"changes": [{"change": change}]}])
    assert policy_of_changes(ddl(gate=True)).judge(wider).action == "ask"


def test_a_source_that_announces_nothing_leaves_the_tables_of_sinks_as_they_are() -> None:
    policy = policy_of_changes(ddl(policies=[{"action": "halt"}]), announced=False)
    assert policy.judge(change_between("s", 1, OLD, WIDER)).action == "ignore"


def test_a_name_that_the_source_gives_to_another_column_is_that_ones_and_no_value_loses_its_place() -> None:
    renamed = TableView.whole(OLD).follow(RENAMED, frozenset({Kind.RENAME_COLUMN}))
    again = structure("t", ID, text("title"), NAME, version=3)
    view = renamed.follow(again, frozenset({Kind.DROP_COLUMN}))
    assert (names(view), view.origins) == (["id", "title", "name"], ("id", "title", "name"))
    assert view.table.renamed == (("name", "title"),), "the sink makes the rename that it left out"
    dropped = TableView.whole(WIDER).follow(OLD, frozenset({Kind.DROP_COLUMN}))
    taken = replace(structure("t", ID, NOTE, version=3), renamed=(("name", "note"),))
    view = dropped.follow(taken, frozenset({Kind.ADD_COLUMN}))
    assert (names(view), view.origins) == (["id", "note"], ("id", "note"))


@pytest.mark.parametrize("number", range(50))
@pytest.mark.parametrize("by", ["origins", "renames"])
def test_no_changes_give_a_view_a_name_twice_or_lose_a_column_that_the_source_still_has(number: int, by: str) -> None:
    chance, ids = seed.dice("views", number), itertools.count(1)

    def new(name: str) -> Column:
        return replace(text(name), origin=f"o{next(ids)}" if by == "origins" else "")

    source = structure("t", replace(ID, origin="o0" if by == "origins" else ""), new("a"), new("b"))
    view, column_of = TableView.whole(source), {"id": 0, "a": 1, "b": 2}
    for version in range(2, 12):
        columns, pairs, before = list(source.columns), [], dict(column_of)
        free = [name for name in "abcd" if name not in column_of]
        old = chance.choice(columns[1:]).name if len(columns) > 1 else ""
        match chance.choice(["add", "drop", "rename"]):
            case "add" if free:
                columns.append(new(free[0]))
                column_of[free[0]] = version + 1
            case "drop" if old:
                columns = [c for c in columns if c.name != old]
                del column_of[old]
            case "rename" if old and free:
                columns = [replace(c, name=free[-1]) if c.name == old else c for c in columns]
                column_of[free[-1]] = column_of.pop(old)
                pairs = [(old, free[-1])]
        seen = {before[origin] for origin in view.origins if origin}
        source = structure("t", *columns, version=version, renamed=pairs)
        view = view.follow(source, frozenset(chance.sample(sorted(KINDS), chance.randrange(len(KINDS)))))
        assert len(set(names(view))) == len(names(view))
        assert seen & set(column_of.values()) <= {column_of[origin] for origin in view.origins if origin}
