"""For each sink a server to write to, and the plainest loop of that system's client over bytes made beforehand."""

from __future__ import annotations

from tidemill.lab.bench.baselines.baseline import PULLED, Station
from tidemill.lab.bench.baselines.clickhouse import ClickHouseStation
from tidemill.lab.bench.baselines.files import FilesStation
from tidemill.lab.bench.baselines.http import HttpEventStation, HttpStation, HttpThreadsStation
from tidemill.lab.bench.baselines.kafka import KafkaStation
from tidemill.lab.bench.baselines.nats import NatsStation
from tidemill.lab.bench.baselines.pgstream import PgstreamStation
from tidemill.lab.bench.baselines.postgres import PostgresStation
from tidemill.lab.bench.baselines.redis import RedisStation
from tidemill.lab.bench.baselines.s3 import S3Station
from tidemill.lab.bench.baselines.starrocks import StarRocksStation

__all__ = ["PULLED", "STATIONS", "Station"]

# What has a colon is another way to use the sink before it, and is measured only if it is named.
STATIONS: dict[str, type[Station]] = {
    "clickhouse": ClickHouseStation,
    "files": FilesStation,
    "http": HttpStation,
    "http:event": HttpEventStation,
    "http:threads": HttpThreadsStation,
    "kafka": KafkaStation,
    "nats": NatsStation,
    "pgstream": PgstreamStation,
    "postgres": PostgresStation,
    "redis": RedisStation,
    "s3": S3Station,
    "starrocks": StarRocksStation,
}
