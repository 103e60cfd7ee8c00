"""What others wrote, on an operator's terminal: a reason, a table's name or an error does not steer it."""

from __future__ import annotations

import io

import pytest

from tidemill.cli import terminal
from tidemill.cli.run_view import LineView, LiveTable
from tidemill.errors import SourceError
from tidemill.service.run.status import PipelineStatus, State
from tidemill.telemetry import events

HOSTILE = "x\x1b[2J\x1b]0;owned\x07\r\x08\x9b31m\u202eabc[red]"
SHOWN = r"x\x1b[2J\x1b]0;owned\x07\r\x08\x9b31m\u202eabc[red]"


def test_nothing_that_is_printed_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_table(["reason"], [[HOSTILE]], title=HOSTILE)
    for show in (terminal.say, terminal.say_line, terminal.progress, terminal.warn):
        show(HOSTILE)
    terminal.show_error(SourceError(HOSTILE, where=HOSTILE, fix=HOSTILE), as_json=False)
    notice = {"code": "odd", "subject": HOSTILE, "what": HOSTILE, "fix": HOSTILE}
    status = PipelineStatus("orders", State.RUNNING, error={"what": HOSTILE}, notices=(notice,))
    LineView(1.0, as_json=False).show([status])
    with LiveTable() as live:
        live.say(HOSTILE)
        live.show([status])
    said = capsys.readouterr()
    text = (said.out + said.err).replace("\n", "")
    assert text.count(SHOWN) >= 9
    assert not [mark for mark in ("\x07", "\x08", "\x9b", "\u202e", "\x1b[2J", "\x1b]") if mark in text]


def test_a_line_of_the_log_for_people_steers_nothing() -> None:
    lines = io.StringIO()
    events.configure(stream=lines)
    try:
        events.warn("pipeline.paused", reason=f"{HOSTILE}\n00:00:00 ERROR forged")
    finally:
        events.configure()
    assert lines.getvalue().count("\n") == 1
    assert r"\x1b[2J" in lines.getvalue()
    assert "\x1b" not in lines.getvalue()
