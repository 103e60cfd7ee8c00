"""What `doctor` says of rows that a pipeline without `snapshot` found in its tables, until somebody has copied them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.sources.support import execute, query
from tests.support.copying import copying
from tidemill.config.pipeline import Pipeline, load
from tidemill.lab.servers.postgres import Postgres
from tidemill.service import checks
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.service.snapshot.uncopied import NOT_COPIED, START_COPY, MetTables, note_tables

_names = itertools.count(1)


@pytest.fixture
def database(postgres18: Postgres) -> Iterator[str]:
    with postgres18.database(f"uncopied_{next(_names)}") as dsn:
        execute(
            dsn, "CREATE TABLE early (id int PRIMARY KEY)", "INSERT INTO early VALUES (1)",
            "CREATE TABLE part (id int PRIMARY KEY)", "INSERT INTO part VALUES (1), (2)",
            "CREATE TABLE empty (id int PRIMARY KEY)",
        )  # fmt: skip
        yield dsn


def warnings_of(pipeline: Pipeline) -> list[tuple[str, str]]:
    said = "rows that are there already are not copied: "
    return [(c.detail.removeprefix(said), c.fix) for c in checks.pipeline(pipeline) if c.name == "snapshot"]


def test_tables_that_were_copied_and_those_captured_from_their_first_row_are_not_warned_of(
    database: str, tmp_path: Path
) -> None:
    with copying(database, tmp_path, settings={"snapshot": None}) as copy:
        assert warnings_of(copy.pipeline)[0][0] == "public.early, public.part"
        copy.until(lambda: MetTables.read(copy.pipeline))
        execute(database, "INSERT INTO empty VALUES (1)", "CREATE TABLE later (id int PRIMARY KEY)")
        copy.until(lambda: query(database, "SELECT 1 FROM pg_publication_tables WHERE tablename = 'later'"))
        execute(database, "INSERT INTO later VALUES (1)")
        copy.until(lambda: copy.rows("later") and copy.rows("empty"))
        file = copy.pipeline.command_file or copy.pipeline.file
        [(tables, fix)] = warnings_of(copy.pipeline)
        assert tables == "public.early, public.part", "the stream has brought the others' rows"
        assert fix == START_COPY.replace("FILE", f"{file} --pipeline copied")
        snapshot_requests.start(copy.pipeline, ["public.part"], "id = 1")
        copy.until_done()
        assert warnings_of(copy.pipeline)[0][0] == "public.early, public.part", "its other rows are not copied"
        snapshot_requests.start(copy.pipeline, [], "")
        assert warnings_of(copy.pipeline) == [], "they are on their way"
        copy.until_done()
        assert warnings_of(copy.pipeline) == []


def test_a_table_that_is_named_later_may_have_had_rows(database: str, tmp_path: Path) -> None:
    def pipeline_of(*tables: str) -> Pipeline:
        source = {"type": "postgres", "config": {"id": "later", "dsn": database, "tables": list(tables)}}
        sinks = [{"type": "blackhole", "config": {"id": "none"}}]
        file = tmp_path / "later.yaml"
        file.write_text(yaml.safe_dump({
            "metadata": {"name": "later"},
            "spec": {"source": source, "sinks": sinks, "state_dir": str(tmp_path / "state")},
        }))  # fmt: skip
        (pipeline,) = load(file)
        pipeline.state_path.mkdir(parents=True, exist_ok=True)
        return pipeline

    def start(pipeline: Pipeline) -> None:
        reader = pipeline.build_source().snapshot_reader()
        note_tables(pipeline, reader)
        reader.close()

    start(pipeline_of("public.empty"))
    execute(database, "INSERT INTO empty VALUES (1)")
    assert warnings_of(pipeline_of("public.empty")) == []
    both = pipeline_of("public.empty", "public.early")
    assert warnings_of(both) == [("public.early", NOT_COPIED)]
    start(both)
    assert warnings_of(both) == [("public.early", NOT_COPIED)]
