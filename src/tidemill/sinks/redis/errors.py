"""From Redis' error replies to ours: which of them a retry can mend, and what to do about the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidemill.errors import DeliveryError, Refused
from tidemill.net.tls import distrust_error

# https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors: the first word is the kind of error.
_MEND_THEMSELVES = {
    "OOM": "Redis is at its maxmemory. Raise it, or bound the stream with maxlen.",
    "READONLY": "This server is a replica. Sentinels and clusters know the new master; a fixed uri must name it.",
    "LOADING": "Redis is loading its data.",
    "BUSY": "Redis is running a script.",
    "MISCONF": "Redis cannot save to disk and takes no writes: look at its log.",
    "NOREPLICAS": "Redis has fewer replicas than min-replicas-to-write.",
    "MASTERDOWN": "The replica has lost its master.",
    "CLUSTERDOWN": "The cluster has slots that no node serves.",
    "TRYAGAIN": "The cluster is moving the slot.",
    "MOVED": "The cluster moved the slot; the new node is asked at the next try. A cluster wants redis+cluster://.",
    "ASK": "The cluster is moving the slot.",
}
_REFUSED = {
    "WRONGTYPE": 'The key holds something else than a stream. Choose another "stream", or delete the key.',
    "NOAUTH": "Put the user and the password into the uri: redis://user:password@host:6379/0.",
    "WRONGPASS": "Check the user and the password in the uri.",
    "NOPERM": "Grant the user XADD, XINFO, XRANGE, HSET and HGETALL on the streams and on tidemill:* (ACL SETUSER).",
    "CROSSSLOT": "Report this: every command here has one key.",
}
SMALLER = "equal or smaller than the target stream top item"


class Overtaken(DeliveryError):
    """The stream is further than this worker knew."""

    code = "redis-overtaken"


def overtaken(where: str) -> Overtaken:
    return Overtaken(
        "another writer has moved on in the stream meanwhile", where=where,
        fix="The next try looks at what is there. Is the pipeline running twice?",
    )  # fmt: skip


def explain(reply: str, where: str) -> DeliveryError:
    """`reply` is the server's error without its leading minus. It never holds a row's value."""
    code = reply.partition(" ")[0]
    if SMALLER in reply:
        return overtaken(where)
    if code in _REFUSED:
        return Refused(f"Redis refused: {code}", where=where, fix=_REFUSED[code])
    if code == "ERR":
        return Refused(f"Redis refused: {reply[:200]}", where=where, fix="Redis 5 or newer has streams; check the uri.")
    fix = _MEND_THEMSELVES.get(code, "Look at the server.")
    return DeliveryError(f"Redis did not take the events: {code}", where=where, fix=fix)


@contextlib.contextmanager
def explain_errors(where: str) -> Iterator[None]:
    """The same for what redis-py raises."""
    from redis import exceptions

    try:
        yield
    except exceptions.AuthenticationError as error:
        raise Refused(f"Redis refused the login: {_message(error)}", where=where, fix=_REFUSED["WRONGPASS"]) from error
    except exceptions.ResponseError as error:
        raise explain(_reply(error), where) from error
    except (exceptions.RedisError, exceptions.RedisClusterException, OSError) as error:
        if distrust_error(error):
            raise Refused(
                "the server's certificate is not trusted, or it does not trust ours", where=where,
                fix="Check tls.ca_file, tls.certificate_file and the name in uri; tls.verify: false trusts any server.",
            ) from error  # fmt: skip
        raise DeliveryError(
            f"Redis cannot be reached: {_message(error)}", where=where, fix="Is the server up, and is the uri right?"
        ) from error


def _reply(error: Exception) -> str:
    """The server's words: redis-py takes the code off those it has a class for, and puts a pipeline's command first."""
    code = {
        "OutOfMemoryError": "OOM", "ReadOnlyError": "READONLY", "NoPermissionError": "NOPERM", "MovedError": "MOVED",
        "AskError": "ASK", "TryAgainError": "TRYAGAIN", "ClusterDownError": "CLUSTERDOWN",
        "MasterDownError": "MASTERDOWN", "BusyLoadingError": "LOADING",
    }.get(type(error).__name__)  # fmt: skip
    message = str(error).rpartition(" of pipeline caused error: ")[2]
    return f"{code} {message}" if code else message


def _message(error: Exception) -> str:
    return str(error).split(" url:")[0].split(" : <")[0][:200] or type(error).__name__  # not which objects tried
