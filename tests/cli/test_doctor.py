from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import psycopg
import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import register
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.capture.status import StatusFile
from tidemill.contracts import Outcome
from tidemill.contracts.schema_change_store import Decision, SinkOutcome, StoredChange
from tidemill.lab.servers.postgres import Postgres
from tidemill.log.writer import LogWriter
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.service import checks as system
from tidemill.service.notice_checks import check_notices
from tidemill.service.run.ownership import lock_pipeline
from tidemill.state.migrations import latest


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    register(monkeypatch)
    return Terminal(capsys)


def pipeline(tmp_path: Path, dsn: str = "pond://wet", extra: str = "") -> Path:
    file = tmp_path / "orders.yaml"
    text = PIPELINE.replace("pond://frog:croak@127.0.0.1/lake", dsn)
    file.write_text(text + f"  state_dir: {tmp_path}/state\n  log: {{max_bytes: 1000}}\n" + extra)
    return file


def fake_java(tmp_path: Path, version: str) -> Path:
    java = tmp_path / "jvm" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return tmp_path / "jvm"


def test_all_is_well_with_a_source_that_says_so(tidemill: Terminal, tmp_path: Path) -> None:
    answer = tidemill("doctor", pipeline(tmp_path), "--json")
    assert answer.code == 0
    outcomes = {check["name"]: check["outcome"] for check in answer.json["checks"]}
    assert outcomes["source pond: water"] == "pass"
    assert {"Python", "Java", "Spark", "state directory", "change log"} <= set(outcomes)
    assert not (tmp_path / "state").exists()  # it looks and touches nothing


def test_a_failed_check_is_exit_code_3_and_says_its_fix(tidemill: Terminal, tmp_path: Path) -> None:
    answer = tidemill("doctor", pipeline(tmp_path, "pond://dry"))
    assert answer.code == 3
    assert "fail  source pond: water" in answer.out
    assert "Open the gate." in answer.out
    assert "1 failed" in answer.out


def test_a_check_that_breaks_is_a_failed_check_and_the_rest_goes_on(tidemill: Terminal, tmp_path: Path) -> None:
    answer = tidemill("doctor", pipeline(tmp_path, "pond://broken"), "--json")
    assert answer.code == 3
    checks = {check["name"]: check for check in answer.json["checks"]}
    assert "no water" in checks["source pond"]["detail"]
    assert "change log" in checks


def test_a_wrong_document_is_exit_code_2(tidemill: Terminal, tmp_path: Path) -> None:
    assert tidemill("doctor", pipeline(tmp_path, extra="  ack: never\n")).code == 2


def test_checkpoints_in_memory_are_warned_about(tidemill: Terminal, tmp_path: Path) -> None:
    answer = tidemill("doctor", pipeline(tmp_path, extra="  checkpoints: {type: memory}\n"))
    assert answer.code == 0
    assert "begins anew" in answer.out


@pytest.mark.parametrize(
    ("version", "outcome"),
    [
        ("17.0.15", Outcome.PASS),
        ("21", Outcome.PASS),
        ("11.0.2", Outcome.FAIL),
        ("1.8.0_402", Outcome.FAIL),
    ],
)
def test_java_is_new_enough_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, outcome: Outcome
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, version)))
    check = system.java()
    assert check.outcome == outcome
    assert bool(check.fix) == (outcome is Outcome.FAIL)


def test_no_java_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert system.java().outcome == Outcome.FAIL
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert "does not run" in system.java().detail


def test_a_place_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert system.directory("x", tmp_path / "file" / "below").outcome == Outcome.FAIL
    monkeypatch.setattr(os, "access", lambda *_: False)  # as root every directory is writable
    assert system.directory("x", tmp_path / "new").outcome == Outcome.FAIL


def test_little_space_is_a_warning(tmp_path: Path) -> None:
    check = system.directory("x", tmp_path, wanted=1 << 60)
    assert check.outcome == Outcome.WARN
    assert "log.max_bytes" in check.fix


def test_a_pipeline_that_ran_rests_where_its_log_ends(tidemill: Terminal, tmp_path: Path) -> None:
    [subject] = config.load(pipeline(tmp_path))
    assert system.read_resting(subject) is None
    subject.state_path.mkdir(parents=True)
    StatusFile(subject.state_path).update(stage="cdc")
    assert system.read_resting(subject) is None, "it ran, but nothing was ever captured"
    log = LogWriter.open(subject.log_uri, subject.spec.log)
    log.append(Committed((), 0, ((0, Position("7/7")),)))
    log.close()
    state = subject.build_state()
    state.confirm(subject.name, Position("7/9"), 0)
    state.close()
    rest = system.read_resting(subject)
    assert rest is not None
    assert (rest.after, rest.confirmed, rest.since > 0) == ("7/7", "7/9", True)


def test_what_was_said_while_it_ran_is_shown_until_somebody_has_looked_at_it(
    tidemill: Terminal, tmp_path: Path
) -> None:
    file = pipeline(tmp_path)
    [subject] = config.load(file)
    subject.state_path.mkdir(parents=True)

    def said(code: str) -> dict[str, str]:
        return {"code": code, "subject": "public.orders", "what": f"{code} was seen", "fix": "tidemill verify FILE"}

    scanned = said("catalog-default")
    StatusFile(subject.state_path).update(now=True, stage="cdc", notices=(scanned,))
    left = {"warehouse": {"public.orders": [said("rows-left-behind")]}}
    (subject.state_path / "notices.json").write_bytes(orjson.dumps(left))
    with closing(subject.build_state()) as state:
        for at, kinds in enumerate((("add_column",), ("drop_column",), ("change_key",))):
            change = StoredChange(0, at, Position("7/7"), "public.orders", kinds, "", "", "", "2026-01-31")
            state.schema_changes.record(subject.name, change)
        state.schema_changes.decide(subject.name, 1, Decision.APPROVED, "policy", "", "2026-01-31")
        state.schema_changes.note(subject.name, 3, "warehouse", SinkOutcome((), "failed", "no unique index"))
    checks = tidemill("doctor", file, "--json").json["checks"]
    found = [each for each in checks if "public.orders" in each["name"]]
    assert [(each["name"].split()[0], each["outcome"]) for each in found] == [
        ("catalog-default", "warn"), ("rows-left-behind", "warn"), ("ddl-failed", "warn"),
        ("ddl-waiting", "warn"),
    ]  # fmt: skip
    assert found[0]["fix"].startswith(f"tidemill verify {file}")
    assert "schema change 2 waits for approval (drop_column)" in found[3]["detail"]
    assert "schema change 3 could not be made (change_key). warehouse: no unique index" in found[2]["detail"]


def test_a_notice_that_the_source_finds_again_by_itself_is_shown_once(tidemill: Terminal, tmp_path: Path) -> None:
    [subject] = config.load(pipeline(tmp_path))
    subject.state_path.mkdir(parents=True)
    seen = {"code": "table-incomplete", "subject": "public.orders", "what": "it may lack rows", "fix": ""}
    StatusFile(subject.state_path).update(now=True, stage="cdc", notices=(seen,))
    assert list(check_notices(subject, {"it may lack rows"})) == []
    assert [each.detail for each in check_notices(subject, ())] == ["it may lack rows"]


def test_a_real_database_is_examined(tidemill: Terminal, tmp_path: Path, database: str) -> None:
    file = tmp_path / "real.yaml"
    source = f"{{type: postgres, config: {{id: d, dsn: '{database}', tables: [public.nowhere]}}}}"
    sinks = "[{type: bucket, config: {id: b}}]"
    file.write_text(
        f"metadata: {{name: real}}\nspec: {{source: {source}, sinks: {sinks}, state_dir: {tmp_path}/state}}\n"
    )
    answer = tidemill("doctor", file, "--json")
    assert answer.code == 0, "a table that is not there yet is waited for"
    checks = [check for check in answer.json["checks"] if check["name"].startswith("source postgres")]
    assert {"pass", "warn"} <= {check["outcome"] for check in checks}
    assert any("nowhere" in check["detail"] + check["fix"] for check in checks if check["outcome"] == "warn")


def test_columns_that_processors_name_are_compared_with_a_real_database_before_the_first_start(
    tidemill: Terminal, tmp_path: Path, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("CREATE TABLE compared (id int PRIMARY KEY, status text)")
        db.execute("CREATE TABLE compared_too (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)")
    file = tmp_path / "real.yaml"
    source = f"{{type: postgres, config: {{id: d, dsn: '{database}', tables: ['public.compared%']}}}}"
    drop = "{type: drop, id: slim, tables: [public.compared], columns: [stauts]}"
    processors = f"[{drop}, {{type: filter, id: f, where: {{field: id, gt: 1}}}}]"
    file.write_text(
        f"metadata: {{name: real}}\nspec: {{source: {source}, processors: {processors},"
        f" sinks: [{{type: bucket, config: {{id: b}}}}], state_dir: {tmp_path}/state}}\n"
    )
    answer = tidemill("doctor", file, "--json")
    found = {check["name"]: check for check in answer.json["checks"] if check["name"].endswith(": columns")}
    slim, few = found["processor slim (drop): columns"], found["processor f (filter): columns"]
    assert (slim["outcome"], slim["detail"]) == ("warn", 'public.compared has no column "stauts"')
    assert 'Did you mean "status"?' in slim["fix"]
    assert few["outcome"] == "pass"


def store_check(tidemill: Terminal, file: Path) -> dict[str, str]:
    (found,) = [c for c in tidemill("doctor", file, "--json").json["checks"] if c["name"] == "state store"]
    return {key: str(found[key]) for key in ("outcome", "detail", "fix")}


def test_the_state_store_is_looked_at_and_not_made(tidemill: Terminal, tmp_path: Path) -> None:
    file = pipeline(tmp_path)
    store = tmp_path / "state" / "state.sqlite"
    assert store_check(tidemill, file) == {"outcome": "pass", "detail": f"{store} will be made", "fix": ""}
    [subject] = config.load(file)
    with closing(subject.build_state()) as state:
        state.confirm(subject.name, Position("7/9"), 0)
    assert store_check(tidemill, file)["detail"] == f"{store}, version {latest()}"


def test_a_state_store_of_a_later_version_or_of_something_else_fails_with_its_fix(
    tidemill: Terminal, tmp_path: Path
) -> None:
    file = pipeline(tmp_path)
    [subject] = config.load(file)
    with closing(subject.build_state()) as state:
        state.confirm(subject.name, Position("7/9"), 0)
    store = tmp_path / "state" / "state.sqlite"
    with closing(sqlite3.connect(store)) as db:
        db.execute("INSERT INTO migrations VALUES (99, 'from the future', '2030-01-01')")
        db.commit()
    found = store_check(tidemill, file)
    assert found["outcome"] == "fail"
    assert str(store) in found["detail"]
    assert found["fix"]
    for kept in store.parent.glob("state.sqlite*"):
        kept.unlink()
    store.write_text("no database " * 100)
    found = store_check(tidemill, file)
    assert found["outcome"] == "fail"
    assert "cannot be used" in found["detail"]
    assert "permissions" in found["fix"]


def test_a_shared_state_store_must_be_reachable_and_writable(
    tidemill: Terminal, tmp_path: Path, postgres18: Postgres
) -> None:
    with postgres18.database("doctor_state") as dsn:
        file = pipeline(tmp_path, extra=f"  state_uri: {dsn}\n")
        assert store_check(tidemill, file)["detail"].endswith("schema tidemill_state will be made")
        with psycopg.connect(dsn) as db:
            assert db.execute("SELECT to_regnamespace('tidemill_state')").fetchone() == (None,), "it was made"
        [subject] = config.load(file)
        with closing(subject.build_state()) as state:
            state.confirm(subject.name, Position("7/9"), 0)
        assert store_check(tidemill, file)["detail"].endswith(f"schema tidemill_state, version {latest()}")
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("ALTER DATABASE doctor_state SET default_transaction_read_only = on")
        found = store_check(tidemill, file)
        assert (found["outcome"], "takes no writes" in found["detail"]) == ("fail", True)
        assert "state_uri" in found["fix"]
    away = dsn.replace(f":{postgres18.port}/", ":9/")
    found = store_check(tidemill, pipeline(tmp_path, extra=f"  state_uri: {away}\n"))
    assert (found["outcome"], "the server is up" in found["fix"]) == ("fail", True)


def test_a_state_directory_that_is_a_copy_fails_and_says_how_to_adopt_it(tidemill: Terminal, tmp_path: Path) -> None:
    [subject] = config.load(pipeline(tmp_path))
    with lock_pipeline(subject):
        pass
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    file = pipeline(tmp_path)
    file.write_text(file.read_text().replace(f"{tmp_path}/state", f"{tmp_path}/copy"))
    before = sorted(str(p) for p in (tmp_path / "copy").rglob("*"))
    answer = tidemill("doctor", file, "--json")
    assert answer.code == 3
    (found,) = [c for c in answer.json["checks"] if c["name"] == "state directory"]
    assert found["outcome"] == "fail"
    assert "is a copy of" in found["detail"]
    assert "tidemill adopt" in found["fix"]
    assert sorted(str(p) for p in (tmp_path / "copy").rglob("*")) == before, "it looks and touches nothing"
