from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import BucketConfig, Pond, PondConfig
from tidemill import config, registry
from tidemill.checkpoints.file import FileCheckpoints
from tidemill.config.problem import Problem
from tidemill.contracts import Component
from tidemill.errors import ConfigError

Write = Callable[..., Path]


def problems(file: Path, environment: dict[str, str] | None = None) -> tuple[Problem, ...]:
    with pytest.raises(config.DocumentError) as caught:
        config.load(file, environment or {})
    return caught.value.problems


def only(file: Path) -> Problem:
    (problem,) = problems(file)
    return problem


def test_the_smallest_pipeline_gets_the_documented_defaults(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (pipeline,) = config.load(write())
    spec = pipeline.spec
    assert (pipeline.name, pipeline.tenant) == ("orders", "acme")
    assert (spec.batch.max_events, spec.batch.max_bytes, spec.batch.max_ms) == (500_000, 67_108_864, 0)
    assert (spec.batch.respect_source_tx, spec.batch.max_inflight) == (True, None)
    assert (spec.commit_policy.mode, spec.checkpoints.type) == ("required", "file")
    assert (spec.spark.master, spec.ack, spec.lanes) == ("local[*]", "delivered", None)
    assert pipeline.state_path == tmp_path / ".tidemill" / "orders"
    assert pipeline.log_uri == str(tmp_path / ".tidemill" / "orders" / "log")
    assert isinstance(spec.source.config, PondConfig)


def test_a_full_document_loads(write: Write, tmp_path: Path) -> None:
    file = write(
        "  sharding: {mode: hash, count: 4, key: customer_id}\n"
        "  batch: {max_events: 500, max_bytes: 1048576, max_ms: 1000, respect_source_tx: true, max_inflight: 2}\n"
        "  commit_policy: {mode: quorum, quorum: 1}\n"
        "  schema_sensing: {enabled: true, deep_inspect: {enabled: true, max_depth: 3}}\n"
        "  processors: []\n"
        "  log: {uri: 's3://bucket/log', max_bytes: 1000000}\n"
        "  checkpoints: {type: sqlite, config: {keep: 7}}\n"
        "  spark: {master: 'spark://127.0.0.1:7077', conf: {spark.executor.cores: '2'}}\n"
        "  ack: logged\n"
        f"  state_dir: {tmp_path}/state\n"
    )
    (pipeline,) = config.load(file)
    assert pipeline.spec.lanes == 4
    assert pipeline.spec.commit_policy.quorum == 1
    assert pipeline.log_uri == "s3://bucket/log"
    assert pipeline.state_path == tmp_path / "state" / "orders"


def test_the_flush_timeout_is_known_by_both_its_names(write: Write) -> None:
    def seconds(text: str) -> float:
        (pipeline,) = config.load(write(text))
        return pipeline.spec.flush_seconds

    assert seconds("") == 60
    assert seconds("  ddl: {flush_timeout_seconds: 5}\n") == 5
    assert [seconds(f"  ddl_flush_timeout: {text}\n") for text in ("1m", "90s", "1m30s", "500ms", "2")] == [
        60,
        90,
        90,
        0.5,
        2,
    ]
    for text, words in (("soon", "500ms, 90s, 1m"), ("0s", "greater than 0"), ("-1m", "500ms, 90s, 1m")):
        assert words in only(write(f"  ddl_flush_timeout: {text}\n")).what
    both = only(write("  ddl_flush_timeout: 1m\n  ddl: {flush_timeout_seconds: 60}\n"))
    assert "leave one of them out" in both.what


def test_components_are_built_from_the_registry(write: Write, tmp_path: Path) -> None:
    (pipeline,) = config.load(write(f"  state_dir: {tmp_path}\n"))
    assert isinstance(pipeline.build_source(), Pond)
    assert [sink.__class__.__name__ for sink in pipeline.build_sinks()] == ["Bucket"]
    store = pipeline.build_checkpoints()
    assert isinstance(store, FileCheckpoints)
    assert store.directory.is_relative_to(tmp_path / "orders")


def test_variables_reach_component_configs_and_templates_stay(write: Write) -> None:
    base = PIPELINE.replace('"pond://frog:croak@127.0.0.1/lake"', "${DSN}").replace(
        "{id: b}", '{id: b, topic: "cdc.${source.table}"}'
    )
    (pipeline,) = config.load(write(base=base), {"DSN": "pond://x"})
    assert pipeline.spec.source.config.dsn == "pond://x"  # type: ignore[attr-defined]
    assert pipeline.spec.sinks[0].config.topic == "cdc.${source.table}"  # type: ignore[attr-defined]
    (problem,) = problems(write(base=base), {"DSM": "pond://x"})
    assert (problem.line, "DSM" in problem.fix) == (5, True)


def test_all_mistakes_of_a_file_are_reported_at_once_in_order(write: Write) -> None:
    file = write(
        base="""\
metadata: {name: orders, tenat: acme}
spec:
  source:
    type: pond
    config: {id: p, port: 99999, tls: {mod: require}}
  sinks:
    - {type: buckit, config: {id: b}}
    - {type: barrel, config: {id: c, litres: many}}
  batch: {max_event: 5}
  commit_policy: {mode: qourum}
"""
    )
    found = [(p.line, p.where.partition(", ")[2]) for p in problems(file)]
    assert found == [
        (1, "metadata.tenat"),
        (5, "spec.source.config.dsn"),
        (5, "spec.source.config.port"),
        (5, "spec.source.config.tls.mod"),
        (7, "spec.sinks[0].type"),
        (8, "spec.sinks[1].config.litres"),
        (9, "spec.batch.max_event"),
        (10, "spec.commit_policy.mode"),
    ]
    fixes = " ".join(p.fix for p in problems(file))
    for name in ("tenant", "mode", "bucket", "max_events", "quorum"):
        assert f'Did you mean "{name}"?' in fixes
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    assert "8 mistakes in" in str(caught.value)
    assert f"{file}:7, spec.sinks[0].type" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("extra", "line", "path", "words"),
    [
        ("  commit_policy: {mode: quorum}", 8, "spec.commit_policy", "quorum"),
        ("  commit_policy: {mode: quorum, quorum: 2}", 8, "spec.commit_policy.quorum", "more than the number of sinks"),
        ("  commit_policy: {mode: quorum, quorum: 0}", 8, "spec.commit_policy.quorum", "greater than or equal to 1"),
        ("  commit_policy: {mode: all, quorum: 1}", 8, "spec.commit_policy.quorum", "has no quorum"),
        ("    - {type: bucket, config: {id: b}}", 8, "spec.sinks[1].config.id", 'two sinks have the id "b"'),
        ("  processors: [{type: filtr, id: t}]", 8, "spec.processors[0].type", 'no processor is called "filtr"'),
        ("  processors: [{type: drop, columns: [a]}]", 8, "spec.processors[0].id", '"id" is missing'),
        ("  processors: [{type: drop, id: d, columns: [a], x: 1}]", 8, "spec.processors[0].x", 'unknown key "x"'),
        ("  processors: [{type: drop, id: d, config: {columns: [a], x: 1}}]", 8, "spec.processors[0].config.x", "key"),
        ("  processors: [{type: drop, id: d, x: 1, config: {columns: [a]}}]", 8, "spec.processors[0].x", "beside"),
        ("  processors: [{type: drop, id: d, columns: [a], ops: [insert]}]", 8, "spec.processors[0].ops", "share"),
        (
            "  processors: [{type: drop, id: d, columns: [a], on_error: dead_letter}]",
            8, "spec.processors[0].on_error", "keeps no dead letters",
        ),
        (
            "  processors: [{type: drop, id: d, columns: [a]}, {type: drop, config: {id: d, columns: [b]}}]",
            8, "spec.processors[1].id", 'two processors have the id "d"',
        ),
        (
            "  processors: [{type: filter, id: f, where: {field: a, equal: 1}}]",
            8, "spec.processors[0].where", 'unknown operator "equal"',
        ),
        ("  schema_sensing: {sampling: {sample_rate: 0}}", 8, "spec.schema_sensing.sampling.sample_rate", "equal to 1"),
        ("  sharding: {mode: table, key: id}", 8, "spec.sharding.key", "does not use a key"),
        ("  sharding: {count: 4}\n  spark: {lanes: 2}", 9, "spec.spark.lanes", "sharding.count"),
        ("  batch: 5", 8, "spec.batch", "should be a mapping, not 5"),
        ("  batch: {max_events: lots}", 8, "spec.batch.max_events", 'should be a whole number, not "lots"'),
        ("  batch: {max_events: 0}", 8, "spec.batch.max_events", "should be greater than or equal to 1, not 0"),
        ("  batch: {respect_source_tx: maybe}", 8, "spec.batch.respect_source_tx", "should be true or false"),
        ("  checkpoints: {type: fille}", 8, "spec.checkpoints.type", "fille"),
        ("  ack: never", 8, "spec.ack", '"never" is not one of'),
        ("  log: {max_byte: 1}", 8, "spec.log.max_byte", "unknown key"),
    ],
)  # fmt: skip
def test_each_mistake_names_line_path_and_reason(write: Write, extra: str, line: int, path: str, words: str) -> None:
    problem = only(write(extra + "\n"))
    assert (problem.line, problem.where.partition(", ")[2]) == (line, path)
    assert words in problem.what
    assert problem.fix


def test_a_pipeline_that_requires_no_sink_is_refused(write: Write) -> None:
    base = PIPELINE.replace("{id: b}", "{id: b, required: false}")
    assert "no sink is required" in only(write(base=base)).what
    assert config.load(write("  commit_policy: {mode: all}\n", base=base))


@pytest.mark.parametrize(("kind", "family"), [("iceberg", "sink"), ("delta", "sink")])
def test_types_of_later_versions_are_refused_and_the_present_ones_named(write: Write, kind: str, family: str) -> None:
    present = {"sink": "bucket"}[family]
    problem = only(write(base=PIPELINE.replace(f"type: {present}", f"type: {kind}")))
    assert problem.what == f'the {family} "{kind}" is not in this version'
    assert present in problem.fix


@pytest.mark.parametrize(
    "text",
    [
        "just text",
        "[1, 2]",
        "metadata: {name: x}",
        "spec: {}",
        "metadata: x\nspec: y",
        "metadata: {name: x}\nspec: {source: 3, sinks: 4}",
        "metadata: {name: x}\nspec: {source: {type: 5}, sinks: [6, {type: bucket}, []], commit_policy: [], spark: 2}",
        "metadata: {name: x}\nspec: {source: {type: pond, config: 1}, sinks: {}, sharding: 1, checkpoints: 7}",
    ],
)
def test_documents_of_any_shape_give_problems_and_no_traceback(write: Write, text: str) -> None:
    assert problems(write(base=text))


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "ä", "a b", "x" * 101])
def test_a_name_that_could_leave_its_directory_is_refused(write: Write, name: str) -> None:
    assert only(write(base=PIPELINE.replace("name: orders", f'name: "{name}"'))).path == ("metadata", "name")


def test_a_secret_is_never_in_an_error(write: Write) -> None:
    base = PIPELINE.replace("id: p,", "id: p, password: [hunter2],")
    assert "hunter2" not in str(only(write(base=base)))
    base = PIPELINE.replace('dsn: "pond://frog:croak@127.0.0.1/lake"', "dsn: {password: hunter2}")
    assert "hunter2" not in str(only(write(base=base)))


def test_several_pipelines_in_a_file_and_names_unique_across_files(write: Write) -> None:
    other = PIPELINE.replace("orders", "users").replace("id: p,", "id: q,")
    both = write(base=f"{PIPELINE}---\n{other}")
    assert [p.name for p in config.load(both)] == ["orders", "users"]
    again = write(base=other, name="again.yaml")
    with pytest.raises(config.DocumentError, match='two pipelines are called "users"') as caught:
        config.load_all([both, again])
    assert str(both) in caught.value.fix


def test_two_pipelines_do_not_share_the_name_of_a_source(write: Write) -> None:
    both = write(base=f"{PIPELINE}---\n{PIPELINE.replace('orders', 'users')}")
    with pytest.raises(config.DocumentError, match='two pipelines have a source called "p"') as caught:
        config.load(both)
    assert "event_id" in caught.value.fix


def test_mistakes_of_several_files_are_reported_together(write: Write, tmp_path: Path) -> None:
    bad = write("  ack: never\n", name="bad.yaml")
    with pytest.raises(config.DocumentError) as caught:
        config.load_all([bad, tmp_path / "none.yaml", write(name="good.yaml")])
    assert [Path(p.file).name for p in caught.value.problems] == ["bad.yaml", "none.yaml"]


def test_a_sink_that_does_not_say_its_capabilities_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batches would be spread over lanes although it may want one."""

    class Puddle(Component[BucketConfig]):
        Config = BucketConfig

    def load(family: str, name: str) -> Any:
        return Puddle if (family, name) == ("sinks", "bucket") else known(family, name)

    known = registry.load
    monkeypatch.setattr(registry, "load", load)
    problem = only(write("  wire_format: json\n"))
    assert problem.path == ("spec", "sinks", 0, "type")
    assert "BaseSink" in problem.fix


def test_real_time_is_refused_where_the_chosen_master_has_no_slot_left_for_other_jobs(
    write: Callable[..., Path],
) -> None:
    for slots in ("local", "local[1]", "local[1,4]"):
        with pytest.raises(ConfigError, match=r"holds 1 of Spark's slots .* raise it to local\[2\]"):
            config.load(write(f'  trigger: {{mode: real_time}}\n  spark: {{master: "{slots}"}}\n'))
    for master in ("local[2]", "local[*]", "spark://host:7077"):
        config.load(write(f'  trigger: {{mode: real_time}}\n  spark: {{master: "{master}"}}\n'))
    with pytest.raises(ConfigError, match=r"does not go with spark\.speculation"):
        config.load(write('  trigger: {mode: real_time}\n  spark: {conf: {spark.speculation: "true"}}\n'))
    with pytest.raises(ConfigError, match=r"holds 2 of Spark's slots"):
        config.load(write('  trigger: {mode: real_time}\n  spark: {master: "local[2]", lanes: 2}\n'))


@pytest.mark.parametrize(
    ("extra", "fix"),
    [
        ("  batch: {max_events: lots}", "Write `max_events: 500000`, for instance. It means: "),
        ("  batch: {respect_source_tx: maybe}", "Write `respect_source_tx: true`, for instance. It means: "),
        ("    - {type: barrel, config: {id: c}}", "Add `litres: NUMBER`. It means: How large."),
        ("  processors: [{type: drop, id: d, columns: 5}]", "Write `columns: [TEXT]`. It means: "),
        ("    - {type: http, config: {id: h, url: nowhere}}", "Change `url`. It means: "),
    ],
)
def test_a_fix_says_what_to_write(write: Write, extra: str, fix: str) -> None:
    assert only(write(extra + "\n")).fix.startswith(fix)


def test_text_with_the_character_nul_is_refused_where_it_stands(write: Write) -> None:
    """YAML can write one, and no path, name or database keeps it."""
    text = PIPELINE.replace("id: p,", 'id: "p\\0",').replace("tenant: acme", 'tenant: "ac\\x00me"')
    assert text.count("\\") == 2
    found = problems(write(base=text))
    assert {p.what for p in found} == {"the text has the character NUL"}
    assert [p.path for p in found] == [("metadata", "tenant"), ("spec", "source", "config", "id")]
