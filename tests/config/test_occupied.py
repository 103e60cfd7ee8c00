"""Two sinks never write to one place: what counts as one, for every kind of sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import register
from tidemill import config, registry
from tidemill.config import DocumentError
from tidemill.contracts import Place


@pytest.fixture(autouse=True)
def _components(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


def document(directory: Path, *sinks: str, name: str = "orders", source: str = "p") -> Path:
    lines = "".join(f"    - {{{sink.format(id=f'{name}-{i}')}}}\n" for i, sink in enumerate(sinks))
    text = PIPELINE.replace("    - {type: bucket, config: {id: b}}\n", lines).replace("name: orders", f"name: {name}")
    path = directory / f"{name}.yaml"
    path.write_text(text.replace("id: p", f"id: {source}"))
    return path


def sink(kind: str, settings: str) -> str:
    return f"type: {kind}, config: {{{{id: {{id}}, {settings.replace('{', '{{').replace('}', '}}')}}}}}"


KAFKA = "brokers: '{}', topic: orders, exactly_once: {}"
PG = "dsn: '{}', table: {}"
ROWS = "'${source.schema}.${source.table}'"
CH = "url: '{}', table: {}"
SHARED = CH.format("http://h", "t") + ", shared_tables: true"
S3 = "bucket: lake, prefix: '{}'"

SAME = [
    ("files", "path: /data/out", "path: /data/./out/"),
    ("files", "path: /data/out", "path: /data/out/orders"),
    ("files", "path: out", "path: ./in/../out"),
    ("files", "path: 's3://lake/cdc'", "path: 's3://key:secret@lake/cdc/orders'"),
    ("s3", S3.format("cdc"), S3.format("cdc/orders")),
    ("s3", S3.format(""), S3.format("orders")),
    ("kafka", KAFKA.format("a:9092,b", "true"), KAFKA.format("b:9092,a", "true")),
    ("redis", "uri: 'redis://me:pw@localhost/0', stream: s", "uri: 'redis://127.0.0.1:6379', stream: s"),
    ("nats", "servers: ['nats://h'], stream: s, subject: a", "servers: ['tls://h:4222'], stream: s, subject: b"),
    ("pgstream", "dsn: 'postgresql://a@h/db', stream: s", "dsn: 'host=h dbname=db user=b', stream: s"),
    ("postgres", PG.format("postgresql://a:pw@h/db", ROWS), PG.format("postgresql://b@h:5432/db", ROWS)),
    ("postgres", PG.format("postgresql://h/db", "orders"), PG.format("postgresql://h/db", "public.orders")),
    ("clickhouse", CH.format("http://h", "t"), CH.format("http://u:pw@h:8123", "t")),
    ("starrocks", "url: 'http://h:8030', database: d", "url: 'http://h:8030', database: d, user: u"),
]
APART = [
    ("files", "path: /data/out", "path: /data/output"),
    ("s3", S3.format("cdc"), S3.format("cdc2")),
    ("s3", S3.format("cdc"), S3.format("cdc") + ", endpoint: 'http://minio:9000'"),
    ("kafka", KAFKA.format("a", "false"), KAFKA.format("a", "false")),
    ("redis", "uri: 'redis://h/0', stream: s", "uri: 'redis://h/1', stream: s"),
    ("nats", "servers: ['nats://h'], stream: s, subject: a, exclusive: false",
     "servers: ['nats://h'], stream: s, subject: b, exclusive: false"),
    ("postgres", PG.format("postgresql://h/db", ROWS), PG.format("postgresql://h/other", ROWS)),
    ("clickhouse", SHARED, SHARED),
    ("http", "url: 'http://h/x'", "url: 'http://h/x'"),
    ("stdout", "format: json", "format: json"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "one", "other"), SAME)
def test_two_sinks_of_a_pipeline_that_write_to_one_place_are_refused(
    tmp_path: Path, kind: str, one: str, other: str
) -> None:
    with pytest.raises(DocumentError) as refusal:
        config.load(document(tmp_path, sink(kind, one), sink(kind, other)))
    (problem,) = refusal.value.problems
    assert 'sink "orders-1" writes to ' in problem.what
    assert 'which sink "orders-0" has' in problem.what
    assert problem.path == ("spec", "sinks", 1, "config")
    assert f"orders.yaml:{problem.line - 1}" in problem.fix
    assert "pw" not in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(("kind", "one", "other"), APART)
def test_sinks_that_do_each_other_no_harm_are_not_refused(tmp_path: Path, kind: str, one: str, other: str) -> None:
    (pipeline,) = config.load(document(tmp_path, sink(kind, one), sink(kind, other)))
    assert len(pipeline.spec.sinks) == 2


def test_a_files_sink_and_an_s3_sink_meet_in_a_bucket(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="s3://lake/cdc/"):
        config.load(document(tmp_path, sink("s3", S3.format("cdc")), sink("files", "path: 's3://lake/cdc'")))


@pytest.mark.parametrize(
    ("kind", "settings", "refused"),
    [
        ("files", "path: /data/out", True),
        ("redis", "uri: 'redis://h', stream: s", True),
        ("redis", "uri: 'redis://h', stream: 'cdc:${source.table}'", False),  # the sources' tables may differ
        ("postgres", PG.format("postgresql://h/db", "public.orders"), True),
        ("postgres", PG.format("postgresql://h/db", ROWS), False),
        ("kafka", KAFKA.format("h", "true"), False),  # other events, other positions
        ("pgstream", "dsn: 'postgresql://h/db', stream: s", False),
    ],
)
def test_sinks_of_two_pipelines_that_run_together_are_compared_too(
    tmp_path: Path, kind: str, settings: str, refused: bool
) -> None:
    first = document(tmp_path, sink(kind, settings), name="first", source="one")
    second = document(tmp_path, sink(kind, settings), name="second", source="two")
    if not refused:
        assert len(config.load_all([first, second])) == 2
        return
    with pytest.raises(DocumentError) as refusal:
        config.load_all([first, second])
    (problem,) = refusal.value.problems
    assert (problem.file, problem.path) == (str(second), ("spec", "sinks", 0, "config"))
    assert 'sink "first-0" of pipeline "first"' in problem.what
    assert f"{first}:" in problem.fix


def test_every_sink_of_ours_says_what_it_occupies_or_that_it_needs_no_place_of_its_own() -> None:
    """A new sink must decide."""
    no_place = {"blackhole", "http", "stdout"}
    ours = {name for name in registry.names("sinks") if registry.load("sinks", name).__module__.startswith("tidemill.")}
    saying = {name for name in ours if "occupies" in vars(registry.load("sinks", name).Config)}
    assert ours - saying == no_place


def test_a_place_holds_what_is_below_it() -> None:
    assert Place("file:///a/").overlaps(Place("file:///a/b/"))
    assert Place("file:///a/b/").overlaps(Place("file:///a/"))
    assert not Place("file:///a/").overlaps(Place("file:///ab/"))
