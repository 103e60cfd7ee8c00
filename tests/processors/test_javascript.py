"""The processor `javascript`: block to block, through a real V8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.processors.scripts import Make, after, big, run, script
from tests.support.blocks import make_block, make_table
from tidemill.errors import ConfigError, ProcessingError
from tidemill.model.block import Block, Op
from tidemill.model.derived import with_column
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.processors.javascript import JavascriptConfig, JavascriptProcessor

pytestmark = pytest.mark.slow
__all__ = ["script"]  # a fixture


def test_what_a_script_does_not_touch_comes_back_as_the_same_bytes(script: Make) -> None:
    block = make_block(50)
    [made] = run(script("function processBatch(events) { return events; }"), block)
    assert made.batch.equals(block.batch)
    assert made.table is block.table


def test_a_changed_field_changes_and_nothing_else(script: Make) -> None:
    block = make_block(50)
    [made] = run(
        script("function process(ev) { ev.after.customer = ev.after.customer.toUpperCase(); return ev; }"), block
    )
    assert [row["customer"] for row in after(made)] == [row["customer"].upper() for row in after(block)]
    for name in ("id", "quantity", "price", "paid", "weight", "note", "placed_at"):
        assert made.struct("after")[name].equals(block.struct("after")[name])  # type: ignore[index]
    assert made.table is block.table


def test_an_event_has_the_fields_of_the_contract(script: Make) -> None:
    block = make_block(2, ops=[Op.INSERT, Op.UPDATE])
    seen = """function process(ev) {
      ev.after.note = [ev.event_id, ev.source_id, ev.database, ev.schema, ev.table, ev.op, ev.tx_id, ev.position,
        ev.timestamp, ev.schema_version, Object.keys(ev.after).join()].join("|");
      return ev;
    }"""
    [made] = run(script(seen), block)
    time = int(block.batch.column("commit_time")[1].value) // 1000
    ordinal = block.batch.column("ordinal")[1].as_py()
    expected = [
        f"shop:0/100:{ordinal}", "shop", "shop", "public", "orders", "update", "700", "0/100", str(time),
        block.table.fingerprint, ",".join(c.name for c in block.table.columns),
    ]  # fmt: skip
    assert after(made)[1]["note"] == "|".join(expected)


def test_values_look_as_in_json_events(script: Make) -> None:
    seen = """function process(ev) {
      const a = ev.after;
      ev.after.note = JSON.stringify([a.id, a.customer, a.quantity, a.price, a.paid, a.weight, a.note, a.placed_at]);
      return ev;
    }"""
    [made] = run(script(seen), make_block(1, first_id=6))
    assert after(made)[0]["note"] == (
        '[6,"customer 6 — Zürich",6,"1.50",true,0.75,null,"2026-01-01T00:00:06.000000Z"]'
    )  # fmt: skip


def test_events_are_dropped_added_and_copied_and_keep_who_they_are(script: Make) -> None:
    block = make_block(4)
    source = """function processBatch(events) {
      const out = [];
      for (const ev of events) {
        if (ev.after.id === 1) continue;
        out.push(ev);
        if (ev.after.id === 2) out.push({...ev, after: {...ev.after, customer: "copy"}});
        if (ev.after.id === 3) out.push({op: "insert", after: {id: 3, customer: "made"}});
      }
      return out;
    }"""
    [made] = run(script(source), block)
    offsets = block.offsets().tolist()
    assert made.offsets().tolist() == [offsets[0], offsets[2], offsets[2], offsets[3], offsets[3]]
    assert [row["customer"] for row in after(made)][2::2] == ["copy", "made"]
    assert after(made)[4] == dict.fromkeys((c.name for c in block.table.columns), None) | {"id": 3, "customer": "made"}
    assert made.batch.column("position").to_pylist() == ["0/100"] * 5


def test_an_event_that_went_through_json_is_still_known(script: Make) -> None:
    block = make_block(3)
    [made] = run(script("const processBatch = (all) => JSON.parse(JSON.stringify(all.slice(1)));"), block)
    assert made.offsets().tolist() == block.offsets().tolist()[1:]
    assert after(made) == after(block)[1:]


def test_process_may_return_null_or_several(script: Make) -> None:
    block = make_block(3)
    source = """function process(ev) {
      if (ev.after.id === 0) return null;
      return ev.after.id === 1 ? [ev, {op: "delete", before: {id: 1}}] : ev;
    }"""
    [made] = run(script(source), block)
    assert made.offsets().tolist() == [block.offsets()[1], block.offsets()[1], block.offsets()[2]]
    assert made.batch.column("op").to_pylist() == [Op.INSERT, Op.DELETE, Op.INSERT]
    assert made.batch.column("after").is_valid().to_pylist() == [True, False, True]
    assert made.batch.column("before")[1].as_py()["id"] == 1


def test_what_process_returns_is_read_before_it_is_called_again(script: Make) -> None:
    """A script may use one object for all of its events: each has what was in it when it was returned."""
    source = """const row = {}, made = {op: "insert", after: row};
    function process(ev) {
      Object.assign(row, ev.after, {note: `copy of ${ev.after.id}`, more: {of: [ev.after.id]}});
      row.more.of.push(ev.after.quantity);
      return [ev, made];
    }"""
    block = make_block(3)
    [made] = run(script(source), block)
    assert made.offsets().tolist() == block.offsets().repeat(2).tolist()
    assert [row["id"] for row in after(made)] == [0, 0, 1, 1, 2, 2]
    assert [row["note"] for row in after(made)[1::2]] == ["copy of 0", "copy of 1", "copy of 2"]
    assert [row["more"] for row in after(made)[1::2]] == ['{"of":[0,0]}', '{"of":[1,1]}', '{"of":[2,2]}']


@pytest.mark.parametrize("name", ["constructor", "toString", "__proto__"])
def test_a_column_may_have_the_name_of_what_every_object_has(script: Make, name: str) -> None:
    base = big(["a", "b"], pa.string(), "text", JsonForm.STRING)
    columns = (base.table.columns[0], Column(name, base.table.columns[1].type))
    table = Table("shop", "public", "orders", columns, ("id",)).with_fingerprint()
    rows = pa.StructArray.from_arrays(base.batch.column("after").flatten(), fields=list(table.arrow_struct()))
    block = Block(table, with_column(base, "after", rows).batch)
    [same] = run(script("function process(ev) { ev.after = {...ev.after}; return ev; }"), block)
    assert same.batch.equals(block.batch)
    [gone] = run(script(f"function process(ev) {{ delete ev.after[{name!r}]; return ev; }}"), block)
    assert after(gone) == [{"id": 0}, {"id": 1}]
    [new] = run(script('function process(ev) { return {op: "insert", after: {id: ev.after.id}}; }'), block)
    assert after(new) == [{"id": 0}, {"id": 1}]
    unchanged = pa.array([[1], None], pa.list_(pa.int32()))
    [kept] = run(script("function process(ev) { return ev; }"), with_column(block, "unchanged", unchanged))
    assert after(kept)[1] == {"id": 1, name: "b"}


def test_old_rows_and_old_keys_are_before_and_can_be_changed(script: Make) -> None:
    block = make_block(2, ops=Op.DELETE)
    side = "before" if block.column("before") is not None else "key"
    source = "function process(ev) { ev.before = {...ev.before}; if (ev.before.id === 1) ev.before.id = 9; return ev; }"
    [made] = run(script(source), block)
    assert [row["id"] for row in made.batch.column(side).to_pylist()] == [0, 9]
    assert made.column("after") is None or made.batch.column("after").null_count == 2


def test_route_says_where_an_event_goes(script: Make) -> None:
    source = """function process(ev) {
      if (ev.after.id === 0) return ev;
      return {...ev.route({topic: "t" + ev.after.id, headers: {a: "b"}})};
    }"""
    [made] = run(script(source), make_block(2))
    assert made.batch.column("route").to_pylist()[1] == {"topic": "t1", "key": None, "headers": [("a", "b")]}
    source = "function process(ev) { return ev.route({key: ev.after.id ? BigInt(ev.after.id) : ev.after.id}); }"
    [made] = run(script(source), make_block(2))
    assert [each["key"] for each in made.batch.column("route").to_pylist()] == ["0", "1"], "a key as integers come"
    with pytest.raises(ProcessingError, match='knows topic, key and headers, not "topics"'):
        run(script("function process(ev) { return ev.route({topics: 1}); }"), make_block(1))


def test_time_and_chance_follow_from_the_event_and_are_the_same_again(script: Make) -> None:
    source = """function process(ev) {
      const clock = new Intl.DateTimeFormat("en", {timeStyle: "medium", dateStyle: "short"});
      const parts = clock.formatToParts().map((part) => part.value).join("");
      const shown = [clock.format(), parts, clock.format(new Date())];
      ev.after.note = [Date.now(), new Date().getTime(), new Date().getHours(), Math.random()].join();
      ev.after.customer = new Set(shown).size === 1 ? shown[0] : shown.join(" is not ");
      return ev;
    }"""
    block = make_block(3)
    first, again = (run(script(source), block)[0] for _ in range(2))
    assert after(first) == after(again)
    notes = [row["note"].split(",") for row in after(first)]
    times = [str(int(t.value) // 1000) for t in block.batch.column("commit_time")]
    assert [note[0] for note in notes] == [note[1] for note in notes] == times
    assert len({note[3] for note in notes}) == 3
    assert all(row["customer"].startswith("1/1/26, 12:00:00") for row in after(first))
    [real] = run(script(source, deterministic=False), block)
    assert int(after(real)[0]["note"].split(",")[0]) > 1_770_000_000_000


def test_an_event_that_a_script_kept_from_an_earlier_call_is_an_added_one(script: Make) -> None:
    source = """let kept = null;
    function processBatch(events) {
      if (kept === null) { kept = events[1]; return events; }
      return [events[0], kept];
    }"""
    block = make_block(2, first_id=10, offsets=[5, 6], positions="0/200")
    made = run(script(source), make_block(2), block)[-1]
    assert made.offsets().tolist() == [5, 5], "its parent is the event before it"
    assert [row["id"] for row in after(made)] == [10, 1]


def test_state_stays_between_batches(script: Make) -> None:
    processor = script("let n = 0; function process(ev) { ev.after.note = String(n++); return ev; }")
    notes = [row["note"] for block in run(processor, make_block(2), make_block(1)) for row in after(block)]
    assert notes == ["0", "1", "2"]


def test_a_long_block_comes_in_calls_of_max_events(script: Make) -> None:
    processor = script(
        "function processBatch(all) { for (const ev of all) ev.after.note = String(all.length); return all; }",
        max_events=4,
    )
    made = run(processor, make_block(10))
    assert [row["note"] for block in made for row in after(block)] == ["4"] * 8 + ["2"] * 2


def test_large_rows_come_in_smaller_calls_and_pass(script: Make) -> None:
    block = big(["x" * 1_000_000] * 40, pa.string(), "text", JsonForm.STRING)
    source = "function processBatch(all) { for (const ev of all) ev.after.n = all.length; return all; }"
    made = run(script(source, limits={"mem_mb": 64}), block)
    assert sum(each.rows for each in made) == 40
    assert max(row["n"] for each in made for row in after(each)) < 10
    assert [row["v"] for each in made for row in after(each)] == ["x" * 1_000_000] * 40


def test_an_exception_names_its_event_and_the_line_of_the_script(script: Make) -> None:
    source = """function helper(a) {
      return a.missing.length;
    }
    function processBatch(events) {
      for (const ev of events) if (ev.after.id === 2) helper(ev.after);
      return events;
    }"""
    block = make_block(5)
    with pytest.raises(ProcessingError) as caught:
        run(script(source), block)
    [(offset, reason)] = caught.value.reasons.items()
    assert offset == block.offsets()[2]
    assert "TypeError: Cannot read properties of undefined (reading 'length')" in reason
    assert "`return a.missing.length;`" in reason
    assert "helper (js.js:2:" in reason
    assert "processBatch (js.js:5:" in reason


def test_messages_of_the_scripts_own_errors_are_not_shown(script: Make) -> None:
    processor = script("function process(ev) { throw new Error('card ' + ev.after.customer); }")
    with pytest.raises(ProcessingError) as caught:
        run(processor, make_block(1))
    assert "Zürich" not in str(caught.value)
    processor.show_messages = True
    with pytest.raises(ProcessingError, match="Zürich"):
        run(processor, make_block(1))


@pytest.mark.parametrize(
    "body",
    [
        "null[v]", "undefined[v] = 1", "({})[v]()", "BigInt(v)", "new Intl.NumberFormat(v + '!!')", "throw v",
        "throw new TypeError(v + ' is not a function')", "throw new ReferenceError(`${v} is not defined`)",
        "const x = new Error('x'); x.name = v; throw x",
    ],
)  # fmt: skip
def test_no_reason_quotes_a_value(script: Make, body: str) -> None:
    source = f"function process(ev) {{ const v = 'Sec' + 'ret' + ev.after.id; {body}; return ev; }}"
    with pytest.raises(ProcessingError) as caught:
        run(script(source), make_block(1))
    assert "Secret" not in str(caught.value)
    assert "Secret" not in str(caught.value.reasons)


def test_what_only_fails_together_is_an_error_of_all(script: Make) -> None:
    block = make_block(3)
    with pytest.raises(ProcessingError) as caught:
        run(script("function processBatch(all) { if (all.length > 2) throw new Error(); return all; }"), block)
    assert sorted(caught.value.reasons) == block.offsets().tolist()


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("function processBatch(e) {\n return e map }", "Unexpected identifier 'map'"),
        ("const x = 1;", "neither processBatch nor process"),
        ("nowhere();", "nowhere is not defined"),
    ],
)
def test_a_script_that_does_not_load_is_an_error_of_the_document(script: Make, source: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        run(script(source), make_block(1))
    [check] = script(source).doctor()
    assert check.outcome == "fail"
    assert what in check.detail


@pytest.mark.parametrize(
    "source", ["return null", "return [1]", "return Promise.resolve(all)", "all[0].op = 'x'; return all"]
)
def test_what_is_no_array_of_events_is_an_error(script: Make, source: str) -> None:
    with pytest.raises(ProcessingError):
        run(script(f"function processBatch(all) {{ {source}; }}"), make_block(1))


def test_a_script_comes_from_a_file_or_from_the_document_but_not_both(tmp_path: Path) -> None:
    (tmp_path / "x.js").write_text("function process(ev) { return null; }")
    processor = JavascriptProcessor(JavascriptConfig(id="x", file=tmp_path / "x.js"))
    assert run(processor, make_block(2)) == []
    processor.close()
    with pytest.raises(ValueError, match="either as inline or as file"):
        JavascriptConfig(id="x")
    with pytest.raises(ConfigError, match="cannot be read"):
        run(JavascriptProcessor(JavascriptConfig(id="x", file=tmp_path / "no.js")), make_block(1))


def test_a_table_without_rows_of_a_side_gets_one(script: Make) -> None:
    block = make_block(1)
    [made] = run(
        script("function process(ev) { ev.op = 'update'; ev.before = {...ev.after, note: 'old'}; return ev; }"), block
    )
    assert made.batch.column("op").to_pylist() == [Op.UPDATE]
    assert made.batch.column("before")[0].as_py()["note"] == "old"


def test_the_same_rows_give_the_same_bytes_from_any_cut(script: Make) -> None:
    source = "function process(ev) { ev.after.note = Math.random().toString(36) + Date.now(); return ev; }"
    block = make_block(20)
    [whole] = run(script(source), block)
    processor = script(source)
    parts = [run(processor, Block(block.table, block.batch.slice(at, 5)))[0] for at in range(0, 20, 5)]
    assert [row for part in parts for row in after(part)] == after(whole)


def test_any_table_passes_unchanged(script: Make) -> None:
    names = ["__proto__", "constructor", "a b", "", "é\"'\\", "after"]
    columns = tuple(Column(name, DataType("integer", pa.int32(), JsonForm.NUMBER)) for name in names)
    base = make_block(3)
    table = Table("d", "s", "odd names", columns).with_fingerprint()
    arrays = [pa.array(np.arange(3, dtype=np.int32) + n) for n in range(len(names))]
    block = Block(
        table, with_column(base, "after", pa.StructArray.from_arrays(arrays, fields=list(table.arrow_struct()))).batch
    )
    processor = script("function process(ev) { ev.after['a b'] += 1; return ev; }")
    [made] = run(processor, block)
    assert [row["a b"] for row in after(made)] == [3, 4, 5]
    assert [row["__proto__"] for row in after(made)] == [0, 1, 2]
    assert make_table().columns  # the helper's table is another
