"""The documents of the reference systems, with the components that ship."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill import config
from tidemill.processors.javascript import JavascriptConfig
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
    assert "unseen" not in json.dumps(pipeline.mask_secrets())


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
    assert [type(each.config) for each in pipeline.spec.processors] == [JavascriptConfig]
    assert pipeline.spec.lanes == 4
    assert (pipeline.spec.commit_policy.mode, pipeline.spec.commit_policy.quorum) == ("quorum", 2)
    sensing = pipeline.spec.schema_sensing
    assert (sensing.enabled, sensing.deep_inspect.max_depth, sensing.sampling.sample_rate) == (True, 3, 5)
    assert "unseen" not in json.dumps(pipeline.mask_secrets())


def test_a_pipeline_needs_a_sink(file: Path) -> None:
    file.write_text(ORDERS[: ORDERS.index("  sinks:")] + "  sinks: []\n")
    with pytest.raises(config.DocumentError, match="should have at least 1, not none"):
        config.load(file, ENVIRONMENT)
