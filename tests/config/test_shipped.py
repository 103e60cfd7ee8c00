"""The documents of the reference systems, with the components that ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidemill import config, registry
from tidemill.sinks.kafka import KafkaConfig
from tidemill.sinks.redis import RedisConfig
from tidemill.sources.mysql import MysqlConfig, MysqlSource
from tidemill.sources.postgres import PostgresConfig, PostgresSource

USERS = """\
metadata:
  name: users-postgres-to-kafka
  tenant: acme
spec:
  source:
    type: postgres
    config:
      id: users-postgres
      dsn: ${POSTGRES_DSN}
      slot: deltaforge_users
      publication: users_pub
      tables:
        - public.users
        - public.user_sessions
      start_position: earliest
  sinks:
    - type: kafka
      config:
        id: users-kafka
        brokers: ${KAFKA_BROKERS}
        topic: user-events
        client_conf: {sasl.password: unseen}
"""
ORDERS = """\
metadata:
  name: orders-mysql-to-kafka
  tenant: acme
spec:
  source:
    type: mysql
    config:
      id: orders-mysql
      dsn: ${MYSQL_DSN}
      tables:
        - shop.orders
        - shop.order_items
  sinks:
    - type: kafka
      config:
        id: orders-kafka
        brokers: ${KAFKA_BROKERS}
        topic: orders
"""
FULL = """\
metadata:
  name: orders-mysql-to-kafka
  tenant: acme
spec:
  sharding:
    mode: hash
    count: 4
    key: customer_id
  source:
    type: mysql
    config:
      id: orders-mysql
      dsn: ${MYSQL_DSN}
      tables:
        - shop.orders
  sinks:
    - type: kafka
      config:
        id: orders-kafka
        brokers: ${KAFKA_BROKERS}
        topic: orders
        required: true
        exactly_once: false
        client_conf:
          message.timeout.ms: "5000"
    - type: redis
      config:
        id: orders-redis
        uri: ${REDIS_URI}
        stream: orders
  batch:
    max_events: 500
    max_bytes: 1048576
    max_ms: 1000
    respect_source_tx: true
    max_inflight: 2
  commit_policy:
    mode: quorum
    quorum: 2
"""
NOT_YET = """\
  processors:
    - type: javascript
      id: transform
      inline: |
        function processBatch(events) {
          return events;
        }
      limits:
        cpu_ms: 50
        mem_mb: 128
        timeout_ms: 500
  schema_sensing:
    enabled: true
    deep_inspect:
      enabled: true
      max_depth: 3
    sampling:
      warmup_events: 50
      sample_rate: 5
"""
ENVIRONMENT = {
    "POSTGRES_DSN": "postgresql://u:unseen@127.0.0.1/db",
    "MYSQL_DSN": "mysql://u:unseen@127.0.0.1:3306/shop",
    "KAFKA_BROKERS": "127.0.0.1:9092",
    "REDIS_URI": "redis://u:unseen@127.0.0.1:6379/0",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.yaml"
    path.write_text(USERS)
    return path


def test_the_postgres_to_kafka_document_loads_as_it_stands(file: Path) -> None:
    (pipeline,) = config.load(file, ENVIRONMENT)
    assert isinstance(pipeline.spec.source.config, PostgresConfig)
    assert isinstance(pipeline.spec.sinks[0].config, KafkaConfig)
    assert isinstance(pipeline.build_source(), PostgresSource)
    assert pipeline.source_id == "users-postgres"
    assert "unseen" not in json.dumps(pipeline.masked())


def test_the_mysql_to_kafka_document_loads_as_it_stands(file: Path) -> None:
    file.write_text(ORDERS)
    (pipeline,) = config.load(file, ENVIRONMENT)
    assert isinstance(pipeline.spec.source.config, MysqlConfig)
    assert isinstance(pipeline.build_source(), MysqlSource)
    assert isinstance(pipeline.spec.sinks[0].config, KafkaConfig)


def test_the_full_document_loads_with_what_there_is(file: Path) -> None:
    file.write_text(FULL)
    (pipeline,) = config.load(file, ENVIRONMENT)
    assert [type(sink.config) for sink in pipeline.spec.sinks] == [KafkaConfig, RedisConfig]
    assert pipeline.spec.lanes == 4
    assert (pipeline.spec.commit_policy.mode, pipeline.spec.commit_policy.quorum) == ("quorum", 2)
    assert "unseen" not in json.dumps(pipeline.masked())


def test_a_pipeline_needs_a_sink(file: Path) -> None:
    file.write_text(ORDERS[: ORDERS.index("  sinks:")] + "  sinks: []\n")
    with pytest.raises(config.DocumentError, match="should have at least 1, not none"):
        config.load(file, ENVIRONMENT)


def test_what_is_not_there_yet_is_refused_and_not_ignored(file: Path) -> None:
    file.write_text(FULL + NOT_YET)
    with pytest.raises(config.DocumentError) as caught:
        config.load(file, ENVIRONMENT)
    assert [problem.what for problem in caught.value.problems] == [
        "processors are not in this version",
        "schema sensing is not in this version",
    ]
    assert all(problem.line and problem.fix for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("component", "package", "install"),
    [("redis", "redis", "pip install redis."), ("mysql", "pymysql.cursors", "pip install pymysql.")],
)
def test_a_driver_that_is_missing_is_named_with_the_way_to_get_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, component: str, package: str, install: str
) -> None:
    load = registry.load

    def without(family: str, name: str) -> Any:
        if name == component:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return load(family, name)

    monkeypatch.setattr(registry, "load", without)
    file.write_text(FULL)
    with pytest.raises(config.DocumentError) as caught:
        config.load(file, ENVIRONMENT)
    (problem,) = caught.value.problems
    assert f"not installed: {package}" in problem.what
    assert install in problem.fix


@pytest.mark.parametrize(
    ("right", "wrong", "path", "nearest"),
    [
        ("publication:", "publicaton:", "spec.source.config.publicaton", "publication"),
        ("start_position: earliest", "start_position: sometime", "spec.source.config.start_position", ""),
        ("type: postgres", "type: postgress", "spec.source.type", "postgres"),
        ("brokers:", "broker:", "spec.sinks[0].config.broker", "brokers"),
        ("${POSTGRES_DSN}", "postgresql://u:unseen@[/db", "spec.source.config.dsn", ""),
    ],
)
def test_mistakes_in_it_name_the_nearest_word(file: Path, right: str, wrong: str, path: str, nearest: str) -> None:
    file.write_text(USERS.replace(right, wrong))
    with pytest.raises(config.DocumentError) as caught:
        config.load(file, ENVIRONMENT)
    problem = next(p for p in caught.value.problems if p.where.endswith(f", {path}"))
    assert problem.line == USERS[: USERS.index(right)].count("\n") + 1
    assert nearest in problem.fix
    assert "unseen" not in str(caught.value)
