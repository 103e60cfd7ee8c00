"""What a document from outside may not reach on the server's machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args, get_origin

import pytest
from pydantic import BaseModel

from tidemill import registry
from tidemill.config.confine import Confinement, _local_paths, violations
from tidemill.config.document import Document
from tidemill.config.pipeline import resolve_all
from tidemill.config.posted import document_of, merge_patch, read_posted
from tidemill.errors import ConfigError


def found(tmp_path: Path, spec: dict[str, Any], *, code: bool = False) -> list[str]:
    """Where the document reaches too far, with files allowed below `tmp_path/root`."""
    base = {
        "source": {"type": "postgres", "config": {"id": "s", "dsn": "postgresql://u@db/shop", "tables": ["t"]}},
        "sinks": [{"type": "stdout", "config": {"id": "o"}}],
        "state_dir": str(tmp_path / "state"),
    }
    data = {"metadata": {"name": "orders"}, "spec": merge_patch(base, spec)}
    (pipeline,) = resolve_all([Document("posted", data, {(): 0})])
    confinement = Confinement((tmp_path / "root",), frozenset(), code)
    return [
        ".".join(map(str, each.path[1:]))
        for each in violations(pipeline, confinement, state_dir=str(tmp_path / "state"))
    ]


def dsn(text: str) -> dict[str, Any]:
    return {"source": {"config": {"dsn": text}}}


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u@db/shop?sslkey=/etc/ssl/private/key.pem",
        "postgresql://u@db/shop?sslkey=key.pem",
        "postgresql://u@db/shop?ssl%6bey=key.pem",
        "postgresql://u@db/shop?passfile=/home/u/.pgpass",
        "postgresql://u@db/shop?service=payroll",
        "postgresql://u@db/shop?sslrootcert=..%2F..%2Fetc%2Fpasswd",
        "postgresql://u@%2Fvar%2Frun%2Fpostgresql/shop",
        "postgresql:///shop?host=/var/run/postgresql",
        "postgresql:///shop",
        "postgresql://db,/shop",
        "host=/var/run/postgresql dbname=shop",
        "host='/var/run/postgresql' dbname=shop",
        r"host=\/var/run/postgresql dbname=shop",
        "host=db dbname=shop passfile=x",
        "postgresql://u@db/shop#?host=/var/run/postgresql",
        "postgresql://u@db/shop?sslkeylogfile=/tmp/keys",
        "postgresql://u@db/shop?hostaddr=1.2.3.4&host=/var/run/postgresql",
        "postgresql://u@db/shop?options=-csession_preload_libraries%3Dx",
        "postgresql://u@db/shop?krbsrvname=x",
        "host=/var/run/postgresql dbname='a://b'",
        "host = db dbname=shop service=payroll",
        "dbname=shop",
        "host='' dbname=shop",
        "host=db,@abstract dbname=shop",
    ],
)
def test_a_dsn_reads_no_local_file_and_no_socket(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, dsn(text)) == ["source.config.dsn"]


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:p%2Fw@db/shop", "postgresql://u@db:5432,db2:5433/shop?target_session_attrs=read-write",
        "host=db dbname=shop password=x/y", "postgresql://u@db/shop?sslmode=verify-full&sslrootcert=system",
        "postgresql://u@db/shop?host=other", "hostaddr=10.0.0.1 dbname=shop user=u",
        "postgresql://u@[::1]:5432/shop?keepalives_idle=5&connect_timeout=3&application_name=x&gssencmode=disable",
    ],
)  # fmt: skip
def test_an_ordinary_dsn_is_taken(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, dsn(text)) == []


@pytest.mark.parametrize(
    "sink",
    [
        {"type": "files", "config": {"id": "o", "path": "/srv/elsewhere"}},
        {"type": "files", "config": {"id": "o", "path": "relative"}},
        {"type": "files", "config": {"id": "o", "path": "~/x"}},
        {"type": "files", "config": {"id": "o", "path": "ROOT/../x"}},
        {"type": "files", "config": {"id": "o", "path": "ROOT/link/x"}},
        {"type": "kafka", "config": {"id": "o", "brokers": "k", "topic": "t", "client_conf": {"ssl.ca.location": "k"}}},
        {"type": "kafka", "config": {"id": "o", "brokers": "k", "topic": "t",
                                     "client_conf": {"plugin.library.paths": "evil.so"}}},
        {"type": "kafka", "config": {"id": "o", "brokers": "k", "topic": "t",
                                     "client_conf": {"sasl.kerberos.kinit.cmd": "touch /tmp/x"}}},
        {"type": "kafka", "config": {"id": "o", "brokers": "k", "topic": "t",
                                     "client_conf": {"sasl.kerberos.keytab": "k"}}},
        {"type": "clickhouse", "config": {"id": "o", "url": "https://c/x", "ca_file": "relative.pem"}},
        {"type": "clickhouse", "config": {"id": "o", "url": "https://c/x", "client_key_file": "relative.pem"}},
        {"type": "postgres", "config": {"id": "o", "dsn": "postgresql://u@db/shop?sslkeylogfile=k"}},
        {"type": "pgstream", "config": {"id": "o", "dsn": "dbname=shop"}},
        {"type": "redis", "config": {"id": "o", "uri": "unix:///run/redis.sock", "stream": "s"}},
        {"type": "redis", "config": {"id": "o", "uri": "rediss://r/0?ssl_ca_certs=/etc/shadow", "stream": "s"}},
        {"type": "http", "config": {"id": "o", "url": "https://h/x", "tls": {"ca_file": "/etc/shadow"}}},
    ],
    ids=lambda sink: f"{sink['type']} {list(sink['config'].values())[-1]}"[:60],
)  # fmt: skip
def test_a_sink_reads_and_writes_only_below_the_roots(tmp_path: Path, sink: dict[str, Any]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    config = {k: v.replace("ROOT", str(root)) if isinstance(v, str) else v for k, v in sink["config"].items()}
    try:
        places = found(tmp_path, {"sinks": [{**sink, "config": config}]})
    except ConfigError:
        return  # the sink itself refuses it
    assert len(places) == 1
    assert places[0].startswith("sinks.0.config.")


def test_what_is_below_a_root_is_taken(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "key.pem").write_text("")
    sinks = [
        {"type": "files", "config": {"id": "a", "path": f"{root}/events/${{source.table}}"}},
        {"type": "s3", "config": {"id": "b", "bucket": "lake", "region": "x", "path": "${source.table}"}},
    ]
    assert found(tmp_path, {"sinks": sinks, **dsn(f"postgresql://u@db/shop?sslkey={root}/key.pem")}) == []


def test_a_state_database_with_its_schema_is_taken(tmp_path: Path) -> None:
    assert found(tmp_path, {"state_uri": "postgresql://u@db/state?schema=s&sslmode=require"}) == []


def test_names_of_columns_and_headers_are_no_paths(tmp_path: Path) -> None:
    spec = {
        "processors": [
            {"type": "rename", "config": {"id": "r", "columns": {"file_path": "location", "command": "x"}}},
            {"type": "javascript", "config": {"id": "j", "inline": "const process = e => e",
                                              "columns": {"plugin": "text", "home_dir": "text"}}},
        ],
        "sinks": [{"type": "http", "config": {"id": "h", "url": "https://h/x", "headers": {"X-File": "orders"}}}],
    }  # fmt: skip
    assert found(tmp_path, spec) == []


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"state_dir": "/var/lib/other"}, "state_dir"),
        ({"log": {"uri": "/var/log"}}, "log.uri"),
        ({"log": {"uri": "file:///var/log"}}, "log.uri"),
        ({"log": {"uri": "hdfs:///var/log"}}, "log.uri"),
        ({"log": {"uri": "hdfs://default:0/var/log"}}, "log.uri"),
        ({"log": {"uri": "VIEWFS://mount/var/log"}}, "log.uri"),
        ({"state_uri": "postgresql:///state"}, "state_uri"),
        ({"state_uri": "postgresql://db/state?schema=s&sslkey=k"}, "state_uri"),
        ({"source": {"config": {"snapshot": {"dsn": "dbname=shop"}}}}, "source.config.snapshot.dsn"),
        ({"checkpoints": {"type": "sqlite", "config": {"path": "/etc/x"}}}, "checkpoints.config.path"),
        ({"spark": {"conf": {"spark.driver.extraJavaOptions": "-agentpath:/x"}}}, "spark"),
        ({"spark": {"master": "spark://attacker:7077"}}, "spark"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_state_log_and_spark_are_the_servers(tmp_path: Path, spec: dict[str, Any], where: str) -> None:
    assert found(tmp_path, spec) == [where]


def test_a_cluster_that_is_named_is_no_file_of_the_server(tmp_path: Path) -> None:
    assert found(tmp_path, {"log": {"uri": "hdfs://namenode:8020/tidemill"}}) == []


def test_a_variables_value_never_becomes_structure() -> None:
    data = read_posted('{"metadata": {"name": "a"}, "spec": {"x": "${V}", "y": "$${V}", "z": "${V:-d}"}}', json=True)
    document = document_of(data, "posted", {"V": '", "evil": {"a": 1}, "b": "'})
    assert document.data["spec"] == {
        "x": '", "evil": {"a": 1}, "b": "',
        "y": "${V}",
        "z": '", "evil": {"a": 1}, "b": "',
    }


@pytest.mark.parametrize(
    ("text", "json"), [("[" * 50_000, False), ("[" * 900 + "]" * 900, True), ("{", True), ("a: &a [*a]", False),
                       ("- 1", False), ("", False),
                       ("a: " + "$" * 200_000, False), ('{"a": "' + "x" * 9000 + '"}', True),
                       ("a: 1\n---\nb: 2", False), ("!!python/object:x {}", False),
                       ("a: " + "1" * 5000, False), (r'a: "\ud800"', False), ("a: !!int x", False)],
)  # fmt: skip
def test_a_body_that_is_no_document_is_refused_and_breaks_nothing(text: str, json: bool) -> None:
    with pytest.raises(ConfigError):
        read_posted(text, json=json)


def places(
    model: type[BaseModel], at: tuple[str, ...] = (), above: tuple[type, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field below a model that a string or a path can be in, and its annotation."""
    for name, info in model.model_fields.items() if model not in above else ():
        yield from _inside(info.annotation, (*at, name), info.annotation, (*above, model))


def _inside(
    part: Any, at: tuple[str, ...], whole: Any, above: tuple[type, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(part, type) and issubclass(part, BaseModel):
        yield from places(part, at, above)
    elif part in (str, Path):
        yield at, whole
    else:
        for inner in get_args(part):
            yield from _inside(inner, at, whole, above)


def build(model: type[BaseModel], at: tuple[str, ...], text: str) -> BaseModel:
    """The model with nothing but this string, unchecked: what a validator lets through must be refused here."""
    name, *rest = at
    annotation = model.model_fields[name].annotation
    value: Any = text
    if rest:
        inner = next(each for each in _models(annotation) if rest[0] in each.model_fields)
        value = build(inner, tuple(rest), text)
    elif Path in _leaves(annotation):
        value = Path(text)
    if {"list", "tuple"} & {getattr(each, "__name__", "") for each in _origins(annotation)}:
        value = [value]
    elif "dict" in {getattr(each, "__name__", "") for each in _origins(annotation)}:
        value = {"key": value}
    nothing: dict[str, Any] = dict.fromkeys(model.model_fields)
    return model.model_construct(**{**nothing, name: value})


def _leaves(part: Any) -> set[Any]:
    return {part}.union(*(_leaves(inner) for inner in get_args(part)))


def _models(part: Any) -> list[type[BaseModel]]:
    return [each for each in _leaves(part) if isinstance(each, type) and issubclass(each, BaseModel)]


def _origins(part: Any) -> set[Any]:
    return {get_origin(part)}.union(*(_origins(inner) for inner in get_args(part)))


COMPONENTS = [(f, n) for f in ("sources", "sinks", "checkpoints", "processors") for n in registry.names(f)]
# Where a string that looks like a path is none: code of its own engine, names in a bucket.
NO_PATHS = {("javascript", "inline"), ("python", "inline"), ("s3", "path")}


@pytest.mark.parametrize(("family", "name"), COMPONENTS)
def test_no_field_of_any_component_takes_a_path_of_the_server(family: str, name: str) -> None:
    """Whatever is registered, also what comes later: a string that names a local file is refused in every field."""
    config = cast(Any, registry.load(family, name)).Config
    tried = 0
    for at, annotation in places(config):
        if (name, at[-1]) in NO_PATHS:
            continue
        hostile = ["/etc/shadow", "../../etc/shadow", "~/.ssh/id_rsa"]
        if Path in _leaves(annotation):
            hostile.append("relative.pem")
        if at[-1] in ("dsn", "url", "uri", "endpoint", "servers"):
            hostile += ["file:///etc/shadow", "unix:///run/x.sock", "sqlite:////etc/x", "hdfs:///etc/shadow"]
        for text in hostile:
            found = list(_local_paths(build(config, at, text), (), kind=name))
            assert found, f"{family}.{name}: {'.'.join(at)} takes {text}"
            tried += 1
    assert tried or name == "memory"
