"""Errors that more than one database can raise, and the words they share."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.errors import ConfigError, SetupError


class LoginRefused(SetupError):
    code = "login-refused"


class TlsFailed(SetupError):
    code = "tls-failed"


class ServerTooOld(SetupError):
    code = "server-too-old"


RESYNC = (
    'The changes in between are gone at the source. Run "tidemill resync FILE" to accept the gap and capture from now'
    " on, and copy the tables to the destinations yourself."
)


def as_value_error(parse: Callable[[], object]) -> None:
    """For validators of a config model, which must not raise anything else."""
    try:
        parse()
    except ConfigError as error:
        raise ValueError(f"{error.what}. {error.fix}") from None
