"""For each sink a server to write to, and the plainest loop of that system's client over bytes made beforehand."""

from __future__ import annotations

from tidemill.lab.bench.baselines.baseline import PULLED, Baseline
from tidemill.lab.bench.baselines.clickhouse import ClickHouseBaseline
from tidemill.lab.bench.baselines.files import FilesBaseline
from tidemill.lab.bench.baselines.http import HttpBaseline, HttpEventBaseline, HttpThreadsBaseline
from tidemill.lab.bench.baselines.kafka import KafkaBaseline
from tidemill.lab.bench.baselines.nats import NatsBaseline
from tidemill.lab.bench.baselines.pgstream import PgstreamBaseline
from tidemill.lab.bench.baselines.postgres import PostgresBaseline
from tidemill.lab.bench.baselines.redis import RedisBaseline
from tidemill.lab.bench.baselines.s3 import S3Baseline
from tidemill.lab.bench.baselines.starrocks import StarRocksBaseline

__all__ = ["BASELINES", "PULLED", "Baseline"]

# What has a colon is another way to use the sink before it, and is measured only if it is named.
BASELINES: dict[str, type[Baseline]] = {
    "clickhouse": ClickHouseBaseline,
    "files": FilesBaseline,
    "http": HttpBaseline,
    "http:event": HttpEventBaseline,
    "http:threads": HttpThreadsBaseline,
    "kafka": KafkaBaseline,
    "nats": NatsBaseline,
    "pgstream": PgstreamBaseline,
    "postgres": PostgresBaseline,
    "redis": RedisBaseline,
    "s3": S3Baseline,
    "starrocks": StarRocksBaseline,
}
