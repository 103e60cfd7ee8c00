"""`tidemill process try`: a file's events and the log's, through real processors."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.blocks import make_block, make_change, make_table
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.log import LogConfig, LogWriter
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.service.redelivery.event_chain import EventChain

pytestmark = pytest.mark.slow

DOCUMENT = """
metadata: {name: trial}
spec:
  source: {type: postgres, config: {id: shop, dsn: "postgresql://u@127.0.0.1/x", tables: [public.orders]}}
  processors:
    - type: javascript
      id: total
      inline: |
        function process(ev) {
          if (ev.after.status === "test") return null;
          ev.after.total = ev.after.price * ev.after.quantity;
          if (ev.after.id === 3) ev.after.nothing.at.all = 1;
          return ev.route({topic: "orders." + ev.after.id});
        }
    - {type: mask, id: hide, config: {rules: [{columns: [customer], method: redact}]}}
  sinks: [{type: stdout, config: {id: out}}]
"""
EVENTS = """\
{"table": "orders", "after": {"id": 1, "status": "new", "price": 2.5, "quantity": 2, "customer": "Ann"}}
{"table": "orders", "after": {"id": 2, "status": "test", "price": 2.5, "quantity": 2, "customer": "Bob"}}

{"table": "orders", "after": {"id": 3, "status": "new", "price": 2.5, "quantity": 2, "customer": "Cem"}}
"""


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trial.yaml"
    path.write_text(DOCUMENT + f"  state_dir: {tmp_path}/state\n  log: {{uri: {tmp_path}/log}}\n")
    (tmp_path / "events.jsonl").write_text(EVENTS)
    return path


def test_events_of_a_file_are_shown_before_and_after_with_time_and_limits(tidemill: Terminal, file: Path) -> None:
    answer = tidemill("process", "try", file, "--events", file.with_name("events.jsonl"), "--json")
    assert answer.code == 1, "an event failed"
    changed, dropped, failed = answer.json["events"]
    assert changed["outcome"] == "changed"
    assert changed["before"]["after"]["customer"] == "Ann"
    [made] = changed["made"]
    assert (made["after"]["customer"], made["after"]["total"]) == ("***", 5)
    assert made["route"] == {"topic": "orders.1"}
    assert dropped["outcome"] == "dropped"
    assert (failed["outcome"], failed["processor"]) == ("failed", "total")
    assert "total.js:4:" in failed["reason"]
    script, mask = answer.json["stages"]
    assert [script[key] for key in ("type", "events_in", "events_out", "failed")] == ["javascript", 3, 1, 1]
    assert mask["limits"] == {}
    assert script["limits"].keys() == {"cpu_ms", "timeout_ms", "mem_mb"}
    assert all(0 < each["used"] < each["limit"] for each in script["limits"].values())


def test_people_see_what_changed_side_by_side(tidemill: Terminal, file: Path) -> None:
    answer = tidemill("process", "try", file, "--events", file.with_name("events.jsonl"))
    [line] = [line for line in answer.out.splitlines() if '"***"' in line]
    assert line.split() == ["-", '"customer":', '"Ann"', "+", '"customer":', '"***",'], "also without colours"
    assert "shop:sample:1  dropped" in answer.out
    assert "cpu_ms" in answer.out


def test_one_processor_alone_over_the_newest_events_of_the_log(tidemill: Terminal, file: Path) -> None:
    (pipeline,) = config.load(file)
    writer = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({}))
    writer.append(make_change(20))
    writer.close()
    answer = tidemill("process", "try", file, "--processor", "hide", "--from-log", 3, "--json")
    assert answer.code == 0
    assert [each["made"][0]["after"]["customer"] for each in answer.json["events"]] == ["***"] * 3
    assert [each["processor"] for each in answer.json["stages"]] == ["hide"]
    assert not (pipeline.state_path / "registry.sqlite").exists(), "a trial keeps nothing"


LEARNING = """
metadata: {name: learning}
spec:
  source: {type: postgres, config: {id: shop, dsn: "postgresql://u@127.0.0.1/x", tables: [public.orders]}}
  processors:
    - type: javascript
      id: half
      on_error: halt
      tables: [public.orders]
      ops: [insert, update]
      inline: "function process(ev) { ev.after.half = ev.after.id ? ev.after.id / 2 : 1n; return ev; }"
    - {type: drop, id: slim, tables: [public.orders], columns: [note]}
  sinks: [{type: stdout, config: {id: out}}]
"""


@pytest.fixture
def captured(tmp_path: Path) -> config.Pipeline:
    """A pipeline that captured public.orders, and whose script has made bigint of its column."""
    path = tmp_path / "learning.yaml"
    path.write_text(LEARNING + f"  state_dir: {tmp_path}/state\n")
    (pipeline,) = config.load(path)
    pipeline.state_path.mkdir(parents=True)
    with closing(SchemaRegistry(pipeline.registry_path)) as registry:
        registry.register(make_table(), Position("0/1"))
    with closing(EventChain(pipeline)) as chain:
        assert len(chain.blocks(make_block(1))) == 1
    return pipeline


@pytest.mark.parametrize("alone", [(), ("--processor", "half")], ids=["whole chain", "alone"])
def test_a_trial_has_the_types_that_run_learned_and_those_of_the_table(
    tidemill: Terminal, captured: config.Pipeline, alone: tuple[str, ...]
) -> None:
    events = captured.state_path.parent / "events.jsonl"
    row = '"customer": "Ann", "quantity": 1, "price": "2.50", "paid": true, "placed_at": "2026-01-01T00:00:00Z"'
    events.write_text(
        f'{{"table": "orders", "after": {{"id": 4, {row}}}}}\n'
        f'{{"table": "orders", "op": "update", "after": {{"id": 3, {row}}}, "unchanged": ["note"]}}\n'
    )
    answer = tidemill("process", "try", captured.file, "--events", events, *alone, "--json")
    assert answer.code == 1, "3 / 2 is no bigint, as it would be no bigint in run"
    whole, half = answer.json["events"]
    assert (whole["outcome"], whole["made"][0]["after"]["half"]) == ("changed", 2)
    assert whole["before"]["after"]["price"] == "2.50", "decimals are text, as in run"
    assert (half["outcome"], half["before"]["unchanged"]) == ("failed", ["note"])
    assert 'column "half" holds bigint, and was given a number with a fraction' in half["reason"]
    assert "`columns: {half: number}`" in half["reason"]
    assert half["seen_by"] == (["half"] if alone else ["half", "slim"])


def test_an_event_that_is_not_of_the_captured_table_is_told_with_its_line(
    tidemill: Terminal, captured: config.Pipeline
) -> None:
    events = captured.state_path.parent / "events.jsonl"
    for row, what in (
        ('{"idd": 1}', 'public.orders has no column "idd"'),
        ('{"id": "x"}', 'column "id" of public.orders is'),
        ('{"price": "x"}', 'column "price" of public.orders is'),
    ):
        events.write_text(f'{{"table": "orders", "after": {row}}}\n')
        answer = tidemill("process", "try", captured.file, "--events", events)
        assert answer.code == 2
        assert what in answer.err
        assert f"{events}:1" in answer.err


def test_events_that_no_processor_takes_are_named_with_what_each_one_is_for(
    tidemill: Terminal, captured: config.Pipeline
) -> None:
    events = captured.state_path.parent / "events.jsonl"
    events.write_text('{"after": {"id": 1}}\n{"table": "orders", "op": "delete", "before": {"id": 1}}\n')
    answer = tidemill("process", "try", captured.file, "--processor", "half", "--events", events, "--json")
    assert answer.code == 0
    assert [event["outcome"] for event in answer.json["events"]] == ["not_taken", "not_taken"]
    assert [event["seen_by"] for event in answer.json["events"]] == [[], []]
    takes = '"half" takes insert, update of public.orders'
    assert [event["reason"] for event in answer.json["events"]] == [
        f"it is insert of public.sample; {takes}", f"it is delete of public.orders; {takes}",
    ]  # fmt: skip
    shown = tidemill("process", "try", captured.file, "--processor", "half", "--events", events).out
    assert shown.splitlines()[:2] == [
        "shop:sample:0  no processor took it", f"  it is insert of public.sample; {takes}"
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["sqlite", "turso"])
def test_a_table_that_was_not_captured_yet_is_in_the_schema_of_its_source(
    tidemill: Terminal, tmp_path: Path, kind: str
) -> None:
    path, events = tmp_path / "first.yaml", tmp_path / "events.jsonl"
    path.write_text(f"""
metadata: {{name: first}}
spec:
  source: {{type: {kind}, config: {{id: shop, path: {tmp_path}/shop.db, tables: [orders]}}}}
  processors: [{{type: filter, id: paid, tables: [main.orders], where: {{field: status, eq: paid}}}}]
  sinks: [{{type: stdout, config: {{id: out}}}}]
  state_dir: {tmp_path}/state
""")
    events.write_text(
        '{"table": "orders", "after": {"status": "paid"}}\n{"table": "orders", "after": {"status": ""}}\n'
    )
    answer = tidemill("process", "try", path, "--events", events, "--json")
    assert [event["outcome"] for event in answer.json["events"]] == ["unchanged", "dropped"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--processor", "hid"), 'no processor is called "hid"'),
        (("--events", "bad.jsonl"), "bad.jsonl:2"),
        (("--events", "none.jsonl"), "the events cannot be read: No such file"),
    ],
)
def test_what_cannot_be_tried_is_said(
    tidemill: Terminal, file: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], what: str
) -> None:
    monkeypatch.chdir(file.parent)
    Path("bad.jsonl").write_text('{"after": {"id": 1}}\n{"op": "insert"}\n')
    answer = tidemill("process", "try", file, *arguments)
    assert answer.code == 2
    assert what in answer.err
