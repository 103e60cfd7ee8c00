"""`tidemill recover` at MySQL and MariaDB: a statement stands in the binlog in place of the rows that it changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysupport import config as source_config
from tests.support.capturing import Running, capturing, eventually
from tidemill.cli.recover import app
from tidemill.errors import ConfigError, PositionLost
from tidemill.lab.servers.mysql_family import Server
from tidemill.sources.mysql import MysqlConfig, MysqlSource

DOCUMENT = """
metadata: {{name: shop}}
spec:
  source: {{type: mysql, config: {{id: shop, dsn: "{dsn}", tables: [shop.t], positions: {positions}}}}}
  sinks: [{{type: blackhole, config: {{id: nowhere}}}}]
  log: {{uri: {log}}}
  state_dir: {state}
"""


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with private_server(request.param) as server:
        yield server


@pytest.fixture(params=["gtid", "file"])
def settings(request: pytest.FixtureRequest, server: Server) -> Iterator[MysqlConfig]:
    with server.database("shop"):
        server.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int)", database="shop")
        yield source_config(
            server.dsn(), "shop.t", heartbeat_seconds=0.5, feedback_seconds=0.1, positions=request.param
        )


@pytest.fixture
def document(server: Server, settings: MysqlConfig, tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(
        DOCUMENT.format(dsn=server.dsn(), positions=settings.positions, log=tmp_path / "log", state=tmp_path / "state")
    )
    return path


@pytest.fixture
def failure(server: Server, settings: MysqlConfig, tmp_path: Path) -> PositionLost:
    """Capture was away for a night; one statement of it cannot be captured."""
    with pipeline(settings, tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
    server.execute(
        "INSERT INTO t VALUES (1)", "INSERT INTO other VALUES (1)", "INSERT INTO t VALUES (2)",
        "INSERT INTO other VALUES (2)", "SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (3)",
        "SET SESSION binlog_format = ROW", "INSERT INTO other VALUES (3)", "INSERT INTO t VALUES (4)",
        database="shop",
    )  # fmt: skip
    with pipeline(settings, tmp_path) as running:
        (error,) = eventually(lambda: running.failure)
    assert isinstance(error, PositionLost)
    assert [row["after"]["id"] for row in running.rows()] == [1, 2], "what came before it is captured"
    return error


@contextmanager
def pipeline(settings: MysqlConfig, tmp_path: Path) -> Iterator[Running]:
    """As the capture process of `document`: with its log and its state directory."""
    state = tmp_path / "state" / "shop"
    state.mkdir(parents=True, exist_ok=True)
    with capturing(MysqlSource(settings), state, log=tmp_path / "log") as running:
        yield running


def test_one_statement_after_a_night_costs_one_transaction(
    failure: PositionLost, settings: MysqlConfig, document: Path, tmp_path: Path
) -> None:
    assert "--skip-transaction" in failure.fix
    answer = invoke(document, "--skip-transaction", "--yes", "--json")
    assert (
        str(answer["lost"]).split(",")[0].removeprefix("transaction at ").removeprefix("transaction ") in failure.where
    )
    with pytest.raises(ConfigError, match="did not stop at a transaction"):
        CliRunner().invoke(app, [str(document), "--skip-transaction", "--yes"], catch_exceptions=False)
    with pipeline(settings, tmp_path) as running:
        eventually(lambda: running.events == 3, running)
        assert [row["after"]["id"] for row in running.rows()] == [1, 2, 4]


def test_capture_goes_on_after_a_named_position(
    failure: PositionLost, server: Server, settings: MysqlConfig, document: Path, tmp_path: Path
) -> None:
    to = str(invoke(document, "--skip-transaction", "--yes", "--json")["to"])
    with pytest.raises(ConfigError, match=r"captured already|is not after"):
        CliRunner().invoke(app, [str(document), "--after", to, "--yes"], catch_exceptions=False)
    server.execute("INSERT INTO t VALUES (5)", database="shop")
    there = str(MysqlSource(settings).renew()).partition("@")[0]  # the end of the binlog now; changes nothing
    server.execute("INSERT INTO t VALUES (6)", database="shop")
    if settings.positions == "file":
        file, _, _byte = there.partition(":")
        with pytest.raises(ConfigError, match="is beyond the end of the binlog"):
            CliRunner().invoke(app, [str(document), "--after", f"{file}:99999999", "--yes"], catch_exceptions=False)
    else:
        domain = there.partition("-")[0]
        future = f"{domain}-1-99999" if domain.isdigit() and len(domain) < 8 else f"{there.partition(':')[0]}:99999"
        with pytest.raises(ConfigError, match=r"is not in what the server has: it has not committed .*99999"):
            CliRunner().invoke(app, [str(document), "--after", future, "--yes"], catch_exceptions=False)
    invoke(document, "--after", there, "--yes", "--json")
    with pipeline(settings, tmp_path) as running:
        eventually(lambda: running.events == 3, running)
        assert [row["after"]["id"] for row in running.rows()] == [1, 2, 6]


def invoke(document: Path, *arguments: str) -> dict[str, Any]:
    answer = CliRunner().invoke(app, [str(document), *arguments], catch_exceptions=False)
    found: dict[str, Any] = orjson.loads(answer.output)
    return found
