"""For each sink a server to write to, and the plainest loop of that system's client over bytes made beforehand."""

from __future__ import annotations

from tidemill.control.bench.stations.clickhouse import ClickHouseStation
from tidemill.control.bench.stations.files import FilesStation
from tidemill.control.bench.stations.http import HttpEventStation, HttpStation, HttpThreadsStation
from tidemill.control.bench.stations.kafka import KafkaStation
from tidemill.control.bench.stations.nats import NatsStation
from tidemill.control.bench.stations.pgstream import PgstreamStation
from tidemill.control.bench.stations.postgres import PostgresStation
from tidemill.control.bench.stations.redis import RedisStation
from tidemill.control.bench.stations.s3 import S3Station
from tidemill.control.bench.stations.starrocks import StarRocksStation
from tidemill.control.bench.stations.station import PULLED, Station

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
