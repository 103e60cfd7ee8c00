"""From errors of NATS and JetStream to ours: which of them a retry can mend, and what to do about the others."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator

import orjson

from tidemill.errors import DeliveryError, Refused

_LOGIN = "Check user, password, token, nkey_seed or credentials_file, and the user's permissions."
# https://github.com/nats-io/nats-server/blob/main/server/errors.json
_REFUSED = {
    503: "No stream takes this subject. Add it to the stream's subjects, or let the sink create the stream.",
    10039: "Enable JetStream for the account.",
    10054: "Raise max_msg_size of the stream.",
    10060: 'The subject belongs to another stream. Check "stream" and "subject".',
    10076: "Enable JetStream on the server (-js).",
}
_OTHERS = {
    10071: "Somebody else publishes to the stream, or the pipeline runs twice. If others may: exclusive: false.",
    10077: "The stream is full and its policy is to discard new messages. Raise its limits, or let consumers catch up.",
    10047: "The server has no more room for streams.",
    10023: "The server has no more room for streams.",
}


def check(answer: bytes, where: str) -> bool:
    """Raises for an error of the stream. Answers whether the message was a duplicate."""
    document = orjson.loads(answer) if answer else {}
    error = document.get("error")
    if error is None:
        return bool(document.get("duplicate", False))
    code = int(error.get("err_code", 0))
    message = str(error.get("description", "no stream listens"))[:200]
    if code in _REFUSED:
        raise Refused(f"JetStream refused: {message}", where=where, fix=_REFUSED[code])
    raise DeliveryError(
        f"JetStream did not take the events: {message}", where=where, fix=_OTHERS.get(code, "Look at the server.")
    )


@contextlib.contextmanager
def explain_errors(where: str, complaint: Callable[[], str] = lambda: "") -> Iterator[None]:
    """`complaint` is what the server last said aside: the reason behind a message that was never answered."""
    from nats import errors
    from nats.js import errors as js

    try:
        yield
    except (errors.AuthorizationError, errors.NoServersError, js.APIError) as error:
        raise _explain(error, where, complaint()) from error
    except (errors.Error, OSError, TimeoutError, concurrent.futures.CancelledError) as error:
        raise _explain(error, where, complaint()) from error


def _explain(error: BaseException, where: str, complaint: str) -> DeliveryError:
    message = str(error)[:200] or type(error).__name__
    lowered = f"{message} {complaint}".lower()
    if "authorization" in lowered or "authentication" in lowered or "permissions violation" in lowered:
        return Refused(f"NATS refused the login or the subject: {complaint or message}", where=where, fix=_LOGIN)
    code = getattr(error, "err_code", None)
    if code in _REFUSED:
        return Refused(f"JetStream refused: {getattr(error, 'description', message)}", where=where, fix=_REFUSED[code])
    if "certificate" in lowered:
        return Refused("the server's certificate is not trusted", where=where, fix="Check tls.ca_file and the name.")
    return DeliveryError(
        f"NATS did not answer: {message}{f' ({complaint})' if complaint and complaint != message else ''}", where=where,
        fix="Is the server up, and is JetStream enabled?",
    )  # fmt: skip
