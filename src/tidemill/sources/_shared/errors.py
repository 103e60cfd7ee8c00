"""Errors that more than one database can raise, and the words they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidemill.errors import ConfigError, SetupError, SourceError

T = TypeVar("T")


class LoginRefused(SetupError):
    code = "login-refused"


class TlsFailed(SetupError):
    code = "tls-failed"


class ServerTooOld(SetupError):
    code = "server-too-old"


class TableRedefined(SourceError):
    """A table or column that a statement names is not there, or not as it was when the statement's read began."""

    code = "table-redefined"
    default_fix = "A copy of the table is planned anew. Otherwise see the server's log for its context."


RECOVER = (
    'The changes in between are gone at the source. Run "tidemill recover FILE --snapshot" to copy the tables again and'
    ' go on, or "tidemill recover FILE --accept-gap" to go on without what was lost.'
)


def as_value_error(parse: Callable[[], T]) -> T:
    """For validators of a config model, which must not raise anything else."""
    try:
        return parse()
    except ConfigError as error:
        raise ValueError(f"{error.what}. {error.fix}") from None
