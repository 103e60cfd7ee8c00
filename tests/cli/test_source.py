"""`tidemill source remove` and `trigger`: a database is as it was before capture."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import psycopg
import pytest

from tidemill.cli.main import main
from tidemill.lab.servers.postgres import Postgres
from tidemill.sources.sqlite import SqliteFileConfig, SqliteSource


def _document(folder: Path, source: str) -> Path:
    file = folder / "shop.yaml"
    file.write_text(
        f"metadata: {{name: shop}}\nspec:\n  source: {source}\n"
        f"  sinks: [{{type: blackhole, config: {{id: none}}}}]\n  state_dir: {folder / 'state'}\n"
    )
    return file


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_triggers_and_tables_are_dropped_once_it_is_confirmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    db.close()
    SqliteSource(SqliteFileConfig(id="shop", path=path)).setup()
    file = _document(tmp_path, f"{{type: sqlite, config: {{id: shop, path: {path}}}}}")

    def names() -> set[str]:
        with sqlite3.connect(path) as db:
            found = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        db.close()
        return found

    code, out, error = _run(capsys, "source", "remove", str(file), "--json")
    assert code != 0, "nobody confirmed it"
    assert "position" in out + error
    assert "_tidemill_changes" in names()
    code, said, _ = _run(capsys, "source", "remove", str(file), "--yes", "--json")
    assert code == 0
    assert "table _tidemill_changes" in json.loads(said)["dropped"]
    assert names() == {"orders", "sqlite_sequence"}


def test_verify_says_how_a_file_is_gone_on_with_that_has_no_change_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    db.close()
    file = _document(tmp_path, f"{{type: sqlite, config: {{id: shop, path: {path}}}}}")
    sink = f"{{type: files, config: {{id: copy, path: {tmp_path / 'out'}, format: json}}}}"
    text = file.read_text().replace("{type: blackhole, config: {id: none}}", sink)
    file.write_text(text)
    code, _, said = _run(capsys, "verify", str(file))
    assert code == 3
    recover = ["recover", str(file), "--pipeline", "shop", "--snapshot"]
    assert f"tidemill {' '.join(recover)}" in said
    assert _run(capsys, *recover, "--yes")[0] == 0
    assert _run(capsys, "verify", str(file))[0] == 0, "there is no row at either side"


def test_a_source_that_makes_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _document(tmp_path, "{type: mysql, config: {id: shop, dsn: 'mysql://u@127.0.0.1:9/shop'}}")
    code, _, said = _run(capsys, "source", "remove", str(file), "--yes")
    assert code == 2
    assert "nothing" in said


def test_event_triggers_are_printed_for_a_superuser_and_removed(
    postgres18: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres18.database("cli_source_trigger") as dsn:
        file = _document(tmp_path, f'{{type: postgres, config: {{id: shop, dsn: "{dsn}"}}}}')
        code, script, _ = _run(capsys, "source", "trigger", str(file), "--sql")
        assert code == 0
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute(script.encode())
            count = "SELECT count(*) FROM pg_event_trigger WHERE evtenabled = 'A'"
            assert db.execute(count.encode()).fetchall() == [(2,)]
            code, said, _ = _run(capsys, "source", "trigger", str(file), "--remove", "--yes", "--json")
            assert (code, len(json.loads(said)["dropped"])) == (0, 3)
            assert db.execute(count.encode()).fetchall() == [(0,)]
        code, said, _ = _run(capsys, "source", "trigger", str(file), "--remove", "--yes")
        assert (code, said) == (0, "nothing was dropped: there was nothing\n")
        code, _, said = _run(capsys, "source", "trigger", str(file))
        assert code == 2
        assert "Give --sql or --remove." in said
