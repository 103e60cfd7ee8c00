"""Connections to one Redis, to the master that sentinels name, or to the nodes of a cluster; raw bytes over each.

redis-py does addresses, logins, TLS and the cluster's map; the events themselves bypass its packing and its reply
objects (`commands`). A failed client is thrown away with its sink: the next asks sentinels or cluster anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from tidemill.errors import DeliveryError
from tidemill.sinks.redis import commands
from tidemill.sinks.redis.errors import explain

if TYPE_CHECKING:
    from tidemill.sinks.redis import RedisConfig

SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
_SENTINEL_PORT = 26379


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A parsed `uri`; `service` is the name sentinels know the master by."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    user: str | None = None
    password: str | None = None
    service: str = ""
    database: int = 0
    sentinel_user: str | None = None
    sentinel_password: str | None = None

    @classmethod
    def parse(cls, uri: str) -> RedisAddress:
        """`ValueError` says what is wrong, without the password."""
        scheme, _, rest = uri.partition("://")
        if scheme not in SCHEMES:
            raise ValueError(f"the uri begins with one of {', '.join(f'{s}://' for s in SCHEMES)}")
        if "+" not in scheme:
            return cls(scheme)  # redis-py reads these by itself
        login, _, place = rest.rpartition("@")
        split = urlsplit(f"//{place}")
        user, _, password = login.partition(":")
        port = _SENTINEL_PORT if "sentinel" in scheme else 6379
        hosts = tuple(_host(text, port) for text in split.netloc.split(","))
        parts = [p for p in split.path.split("/") if p]
        query = dict(parse_qsl(split.query))
        if "sentinel" in scheme and not 1 <= len(parts) <= 2:
            raise ValueError("a sentinel uri ends with the master's name: redis+sentinel://host:26379/mymaster/0")
        if "cluster" in scheme and parts not in ([], ["0"]):
            raise ValueError("a cluster has only database 0")
        database = parts[1] if len(parts) == 2 else "0"
        if not database.isdigit():
            raise ValueError("the database is a number")
        return cls(
            scheme, hosts, unquote(user) or None, unquote(password) or None,
            parts[0] if "sentinel" in scheme else "", int(database),
            query.get("sentinel_username"), query.get("sentinel_password"),
        )  # fmt: skip


def _host(text: str, default: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(default)
    if not host or not port.isdigit():
        raise ValueError("hosts are host:port, several with commas")
    return host.strip("[]"), int(port)


class RedisClient:
    """`redis` answers ordinary commands; `wire` gives the raw connection to the node that has a stream."""

    def __init__(self, config: RedisConfig) -> None:
        self.redis = _open(config)
        self._cluster = "+cluster" in config.uri.partition("://")[0]
        self._wires: dict[str, RedisConnection] = {}
        self._where = config.where

    def place(self, stream: str) -> int:
        """Streams of one place can be in one transaction: in a cluster those of one slot, else all."""
        return int(self.redis.keyslot(stream)) if self._cluster else 0

    def wire(self, place: int) -> RedisConnection:
        if not self._cluster:
            return self._wire("", self.redis)
        node = self.redis.nodes_manager.get_node_from_slot(place)
        return self._wire(node.name, self.redis.get_redis_connection(node))

    def _wire(self, name: str, redis: Any) -> RedisConnection:
        if name not in self._wires:
            self._wires[name] = RedisConnection(redis.connection_pool.get_connection(), self._where)
        return self._wires[name]

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()
        self.redis.close()


class RedisConnection:
    """Raw commands over one connection. What a failure leaves unread is settled by closing it."""

    def __init__(self, connection: Any, where: str) -> None:
        self._connection = connection
        self._where = where
        self._buffer = np.empty(1 << 18, np.uint8)

    def run(self, packed: memoryview, replies: int) -> None:
        """Returns when so many replies came; the first error among them is raised."""
        socket, view, used = self._connection._sock, memoryview(self._buffer.data), 0
        socket.sendall(packed)
        while replies:
            got = socket.recv_into(view[used:])
            if not got:
                raise DeliveryError(
                    "Redis closed the connection", where=self._where, fix="Look at the server's log; it is tried again."
                )
            used += got
            consumed, count, start, end = commands.scan(self._buffer, used)
            if end:
                raise explain(bytes(self._buffer[start:end]).decode(errors="replace"), self._where)
            replies -= count
            self._buffer[: used - consumed] = self._buffer[consumed:used].copy()
            used -= consumed

    def close(self) -> None:
        self._connection.disconnect()


def _open(config: RedisConfig) -> Any:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    uri = config.uri
    address = RedisAddress.parse(uri)
    options: dict[str, Any] = {
        "socket_connect_timeout": config.connect_timeout_seconds,
        "socket_timeout": config.timeout_seconds,
        "protocol": 2,  # replies only; RESP3 may push messages between them
        "client_name": "tidemill",
    }
    once = Retry(NoBackoff(), 0)  # the stream retries, by its own policy
    tls = _tls(config) if address.scheme.startswith("rediss") else {}
    login = {"username": address.user, "password": address.password}
    if address.scheme == "unix":
        del options["socket_connect_timeout"]
    if "+" not in address.scheme:
        return redis.Redis.from_url(uri, retry=once, **options, **tls)
    if tls:
        tls["ssl"] = True
    if "cluster" in address.scheme:
        nodes = [redis.cluster.ClusterNode(host, port) for host, port in address.hosts]
        return redis.RedisCluster(startup_nodes=nodes, require_full_coverage=False, **login, **options, **tls)
    sentinel_login = {"username": address.sentinel_user, "password": address.sentinel_password}
    sentinel_options = {"retry": once, **options, **tls, **sentinel_login}
    sentinels = redis.Sentinel(list(address.hosts), sentinel_kwargs=sentinel_options, **options, **tls, **login)
    try:
        sentinels.discover_master(address.service)
    except redis.sentinel.MasterNotFoundError:
        for sentinel in sentinels.sentinels:
            sentinel.ping()  # it does not say why one gave no answer
        raise
    return sentinels.master_for(address.service, db=address.database, retry=once)


def _tls(config: RedisConfig) -> dict[str, Any]:
    tls = config.tls
    tls.context()  # says which file is at fault, where redis-py would only fail to connect
    return {
        "ssl_ca_certs": tls.ca_file and str(tls.ca_file),
        "ssl_certfile": tls.certificate_file and str(tls.certificate_file),
        "ssl_keyfile": tls.key_file and str(tls.key_file),
        "ssl_password": tls.key_password and tls.key_password.get_secret_value(),
        "ssl_cert_reqs": "required" if tls.verify else "none",
        "ssl_check_hostname": tls.verify,
    }
