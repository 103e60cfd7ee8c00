"""The documents of the reference systems, with the components that ship."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill import config
from tidemill.sinks.kafka import KafkaConfig
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
ENVIRONMENT = {"POSTGRES_DSN": "postgresql://u:unseen@127.0.0.1/db", "KAFKA_BROKERS": "127.0.0.1:9092"}


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
