"""`tidemill ddl`: changes as the state store and the log have them, and decisions on them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.blocks import make_change, make_table
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.contracts.schema_change_store import Decision, SinkOutcome, StoredChange
from tidemill.errors import LifecycleError
from tidemill.log import LogConfig, LogWriter
from tidemill.model.position import Position
from tidemill.service.cause import Cause
from tidemill.service.schema.changes import decide as decide_change
from tidemill.state import open_installation, open_store

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://nobody@127.0.0.1:1/none", tables: [public.orders]}}}}
  sinks: [{{type: files, config: {{id: files, path: {directory}/files}}}}]
  ddl: {{gate: true, approvers_note: required}}
  state_dir: {directory}/state
"""


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One change is on record and waits; the log has it too."""
    file = tmp_path / "orders.yaml"
    file.write_text(DOCUMENT.format(directory=tmp_path))
    (pipeline,) = config.load(file)
    pipeline.state_path.mkdir(parents=True)
    old, new = make_table().with_fingerprint(), make_table(version=2).with_fingerprint()
    with closing(LogWriter.open(pipeline.log_uri, LogConfig.model_validate({"fsync": False}))) as log:
        log.append(make_change(5, tables=[old], number=1))
        log.append(make_change(5, tables=[new], number=2, barrier=True))
    with closing(open_store(pipeline.state_uri)) as state:
        change = StoredChange(
            0,
            5,
            Position("0/200"),
            "public.orders",
            ("add_column",),
            "ALTER TABLE orders ADD n int",
            old.to_json().decode(),
            new.to_json().decode(),
            "2026-01-31",
        )
        state.schema_changes.record("orders", change)
        state.schema_changes.note("orders", 1, "files", SinkOutcome(("ALTER TABLE o ADD n",)))
        state.schema_changes.keep_structures(
            "orders", "orders", {"public.orders": {"source": old.to_json().decode(), "since": 0, "views": {}}}
        )
    return file


def test_ls_and_show_have_the_statement_the_plans_and_the_status(tidemill: Terminal, path: Path) -> None:
    (listed,) = tidemill("ddl", "ls", path, "--json").json["changes"]
    assert (listed["number"], listed["status"], listed["kinds"]) == (1, "pending", ["add_column"])
    assert "public.orders" in tidemill("ddl", "ls", path).out
    shown = tidemill("ddl", "show", path, 1, "--json").json
    assert shown["sinks"] == [
        {"sink": "files", "statements": ["ALTER TABLE o ADD n"], "status": "", "error": "", "at": ""}
    ]
    text = tidemill("ddl", "show", path, 1).out
    assert "ALTER TABLE orders ADD n int" in text
    [change] = shown["changes"]
    assert (change["change"], len(shown["after"]["columns"])) == ("add", len(shown["before"]["columns"]) + 1)
    assert f"  add {change['column']} {change['type']}\n" in text  # where the source tells no statement, this does
    assert "not reached  would run: ALTER TABLE o ADD n" in text


@pytest.mark.parametrize(("status", "said"), [("applied", "ran:"), ("failed", "tried:"), ("ignored", "did not run:")])
def test_what_a_sink_did_is_not_shown_as_a_plan(tidemill: Terminal, path: Path, status: str, said: str) -> None:
    (pipeline,) = config.load(path)
    with closing(open_store(pipeline.state_uri)) as state:
        state.schema_changes.note("orders", 1, "files", SinkOutcome(("ALTER TABLE o ADD n",), status))
    text = tidemill("ddl", "show", path, 1).out
    assert f"{said} ALTER TABLE o ADD n" in text
    assert "would" not in text


def test_a_change_that_an_operator_made_is_not_shown_as_one_to_run(tidemill: Terminal, path: Path) -> None:
    tidemill("ddl", "apply", path, 1, "-m", "made by hand")
    assert "not reached  does not run: ALTER TABLE o ADD n" in tidemill("ddl", "show", path, 1).out


def test_plan_shows_what_waits_in_the_log_and_what_the_policies_say(tidemill: Terminal, path: Path) -> None:
    (planned,) = tidemill("ddl", "plan", path, "--json").json["changes"]
    assert (planned["offset"], planned["table"], planned["action"]) == (5, "public.orders", "ask")
    assert planned["kinds"] == ["add_column"]
    assert [each["sink"] for each in planned["sinks"]] == ["files"]
    assert "ask" in tidemill("ddl", "plan", path).out


@pytest.mark.parametrize(("verb", "status"), [("approve", "approved"), ("reject", "rejected"), ("apply", "applied")])
def test_a_decision_says_why_and_is_taken_once(tidemill: Terminal, path: Path, verb: str, status: str) -> None:
    refused = tidemill("ddl", verb, path, 1)
    assert (refused.code, "needs a reason" in refused.err) == (2, True)
    assert status in tidemill("ddl", verb, path, 1, "--reason", "agreed").out
    assert f"is {status} already" in tidemill("ddl", "approve", path, 1, "-m", "again").err
    found = tidemill("ddl", "show", path, 1, "--json").json
    assert (found["status"], found["reason"]) == (status, "agreed")
    (pipeline,) = config.load(path)
    with closing(open_installation(pipeline.state_uri)) as store:
        (entry,) = store.audit_trail()
    assert (entry.action, entry.subject) == (f"{verb} schema change", "orders")


def test_of_operators_who_decide_at_once_one_decides_and_the_trail_has_that_one(path: Path) -> None:
    (pipeline,) = config.load(path)
    decisions = [Decision.APPROVED, Decision.REJECTED, Decision.MADE]
    together = threading.Barrier(6)

    def decide(number: int) -> str:
        together.wait(60)
        cause = Cause(f"operator {number % 5}", "agreed")  # two of them by one name
        try:
            decide_change(pipeline, 1, decisions[number % 3], cause)
        except LifecycleError:
            return ""
        return cause.actor

    with ThreadPoolExecutor(6) as operators:
        won = [actor for actor in operators.map(decide, range(6)) if actor]
    with closing(open_store(pipeline.state_uri)) as state, closing(open_installation(pipeline.state_uri)) as store:
        kept = state.schema_changes.change("orders", 1)
        trail = [entry.actor for entry in store.audit_trail()]
    assert kept is not None
    assert won == trail == [kept.actor]


def test_a_change_that_is_not_there_is_refused_with_those_that_are(tidemill: Terminal, path: Path) -> None:
    assert "There are: 1." in tidemill("ddl", "show", path, 7).err


@pytest.mark.parametrize("status", ["quarantined", "pending"])
def test_a_change_that_waits_is_shown_and_a_new_key_is_not_rejected(
    tidemill: Terminal, path: Path, status: str
) -> None:
    """Nothing could follow it: a decision is taken once."""
    (pipeline,) = config.load(path)
    with closing(open_store(pipeline.state_uri)) as state:
        store = state.schema_changes
        change = StoredChange(
            0, 7, Position("0/300"), "public.lines", ("change_key",), "", "", "", "2026-01-31"
        )  # fmt: skip
        key = store.record("orders", change)
        if status == "quarantined":
            store.quarantine("orders", 1, "public.orders", 5, "2026-01-31")
            store.quarantine("orders", key.number, "public.lines", 7, "2026-01-31")
    listed = tidemill("ddl", "ls", path, "--json").json["changes"]
    assert [each["status"] for each in listed] == [status, status]
    refused = tidemill("ddl", "reject", path, 2, "-m", "no")
    assert (refused.code, "change key cannot be left out" in refused.err, "ddl apply" in refused.err) == (2, True, True)
    assert "is rejected" in tidemill("ddl", "reject", path, 1, "-m", "no").out
    assert "is approved" in tidemill("ddl", "approve", path, 2, "-m", "yes").out
