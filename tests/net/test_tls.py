"""Sinks over TLS, each with a private authority: trusted with its certificate, refused in plain words without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocks import make_block
from tests.support.tlsproxy import TlsProxy
from tidemill.contracts import Outcome
from tidemill.errors import EnvironmentProblem, Refused, is_retryable
from tidemill.lab.servers import tls
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.postgres import Postgres, installed_bin
from tidemill.lab.servers.seaweedfs import SeaweedFS
from tidemill.lab.servers.tls import Certificates
from tidemill.lab.servers.valkey import Valkey
from tidemill.model.delivery import Delivery
from tidemill.net.tls import TlsConfig
from tidemill.sinks.clickhouse import ClickHouseConfig, ClickHouseSink
from tidemill.sinks.postgres import PostgresSink, PostgresSinkConfig
from tidemill.sinks.redis import RedisConfig, RedisSink
from tidemill.sinks.s3 import S3Config, S3Sink

Make = Callable[..., Any]
"""A sink with these TLS settings, in the words of that sink."""


def delivery(rows: int = 3000) -> Delivery:
    block = make_block(rows)
    return Delivery("shop", "orders", 0, rows, 0, 1, lambda: iter((block,)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return tls.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that signed nothing here."""
    return tls.make(tmp_path_factory.mktemp("stranger")).ca


def written(sink: Any) -> int:
    try:
        return int(sink.write(delivery()).events)
    finally:
        sink.close()


def assert_refused(sink: Any) -> None:
    try:
        with pytest.raises(Refused, match=r"certificate is not trusted") as raised:
            sink.write(delivery())
        assert not is_retryable(raised.value)
        assert "ca_file" in raised.value.fix
        first = next(iter(sink.doctor()))
        assert first.outcome is Outcome.FAIL
        assert "certificate" in first.detail
    finally:
        sink.close()


class TestRedis:
    @pytest.fixture(scope="class")
    @classmethod
    def sinks(cls, made: Certificates) -> Iterator[Make]:
        with Valkey() as server, TlsProxy(server.port, made) as proxy:
            yield lambda **options: RedisSink(
                RedisConfig(
                    id="r",
                    uri=f"rediss://127.0.0.1:{proxy.port}/0",
                    stream=f"s-{len(str(options))}",
                    tls=TlsConfig(**options),
                )
            )

    def test_trusts_its_authority_or_anybody_if_told_so(self, sinks: Make, made: Certificates) -> None:
        assert written(sinks(ca_file=made.ca)) == 3000
        assert written(sinks(verify=False)) == 3000

    def test_refuses_a_stranger(self, sinks: Make, stranger: Path) -> None:
        assert_refused(sinks())
        assert_refused(sinks(ca_file=stranger))

    def test_names_the_file_that_is_at_fault(self, sinks: Make, tmp_path: Path) -> None:
        with pytest.raises(Refused, match="the TLS files cannot be used"):
            sinks(ca_file=tmp_path / "nothing").write(delivery())

    def test_refuses_a_stranger_among_nodes_and_sentinels(self, made: Certificates) -> None:
        with Valkey({"cluster-enabled": "yes"}) as node, TlsProxy(node.port, made) as proxy:
            for uri in (f"rediss+cluster://127.0.0.1:{proxy.port}", f"rediss+sentinel://127.0.0.1:{proxy.port}/shop"):
                assert_refused(RedisSink(RedisConfig(id="r", uri=uri, stream="s")))


class TestS3:
    @pytest.fixture(scope="class")
    @classmethod
    def sinks(cls, made: Certificates) -> Iterator[Make]:
        with SeaweedFS() as server, TlsProxy(server.port, made) as proxy:
            server.bucket("lake")
            settings = {
                "bucket": "lake", "endpoint": f"https://127.0.0.1:{proxy.port}",
                "access_key_id": server.access_key, "secret_access_key": server.secret_key,
            }  # fmt: skip
            yield lambda **options: S3Sink(
                S3Config.model_validate({"id": "s", "prefix": f"p-{len(str(options))}", "tls": options, **settings})
            )

    def test_trusts_its_authority_or_anybody_if_told_so(self, sinks: Make, made: Certificates) -> None:
        assert written(sinks(ca_file=made.ca)) == 3000
        assert written(sinks(verify=False)) == 3000
        assert {c.outcome for c in sinks(ca_file=made.ca).doctor()} == {Outcome.PASS}

    def test_refuses_a_stranger(self, sinks: Make, stranger: Path) -> None:
        assert_refused(sinks())
        assert_refused(sinks(ca_file=stranger))

    def test_names_the_file_that_is_at_fault(self, sinks: Make, made: Certificates, tmp_path: Path) -> None:
        for file, what in ((tmp_path / "nothing", "cannot be read"), (made.key, "has none")):
            with pytest.raises(Refused, match=what) as raised:
                sinks(ca_file=file).write(delivery())
            assert "ca_file" in raised.value.fix
            assert [c.outcome for c in sinks(ca_file=file).doctor()] == [Outcome.FAIL]


class TestClickHouse:
    @pytest.fixture(scope="class")
    @classmethod
    def sinks(cls, made: Certificates) -> Iterator[Make]:
        with ClickHouse() as server, TlsProxy(server.port, made) as proxy:
            yield lambda **options: ClickHouseSink(
                ClickHouseConfig(
                    id="c", url=f"https://127.0.0.1:{proxy.port}", database=f"d{len(str(options))}", **options
                )
            )

    @pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")  # it is what verify: false asks
    def test_trusts_its_authority_or_anybody_if_told_so(self, sinks: Make, made: Certificates) -> None:
        assert written(sinks(ca_file=str(made.ca))) == 3000
        assert written(sinks(verify=False)) == 3000

    def test_refuses_a_stranger(self, sinks: Make, stranger: Path) -> None:
        assert_refused(sinks())
        assert_refused(sinks(ca_file=str(stranger)))


class TestPostgres:
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[Postgres]:
        try:
            bin_dir = installed_bin(15)  # the embedded 18 has no TLS
        except EnvironmentProblem as problem:
            pytest.skip(problem.what)
        rules = ["hostssl all postgres 127.0.0.1/32 scram-sha-256", "host all all 127.0.0.1/32 reject"]
        with Postgres(bin_dir, password="secret", ssl=True, durable=False, hba=rules) as server:
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def sinks(cls, server: Postgres) -> Make:
        def make(**options: str) -> PostgresSink:
            server.query("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            return PostgresSink(PostgresSinkConfig(id="p", dsn=server.dsn(**options)))

        return make

    @pytest.mark.parametrize("mode", ["verify-full", "verify-ca", "require"])
    def test_trusts_its_authority_or_anybody_if_told_so(self, sinks: Make, server: Postgres, mode: str) -> None:
        known = {"sslrootcert": str(server.ca)} if mode.startswith("verify") else {}
        assert written(sinks(sslmode=mode, **known)) == 3000

    @pytest.mark.parametrize("mode", ["verify-full", "verify-ca"])
    def test_refuses_a_stranger(self, sinks: Make, stranger: Path, mode: str) -> None:
        with pytest.raises(Refused, match="no trusted connection") as raised:
            sinks(sslmode=mode, sslrootcert=str(stranger)).write(delivery())
        assert not is_retryable(raised.value)
        assert "sslrootcert" in raised.value.fix

    def test_is_refused_without_tls_by_a_server_that_wants_it(self, sinks: Make) -> None:
        with pytest.raises(Refused):
            sinks(sslmode="disable").write(delivery())
