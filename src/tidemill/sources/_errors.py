"""Errors that more than one database can raise, and the words they share."""

from __future__ import annotations

from tidemill.errors import SetupError


class LoginRefused(SetupError):
    pass


class TlsFailed(SetupError):
    pass


class ServerTooOld(SetupError):
    pass


class TableMissing(SetupError):
    pass


RESYNC = (
    'The changes in between are gone at the source. Run "tidemill resync FILE" to accept the gap and capture from now'
    " on, and copy the tables to the destinations yourself."
)
