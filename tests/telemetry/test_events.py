"""Named events, as a person reads them."""

from __future__ import annotations

import io

from tidemill.telemetry import events


def test_quotes_inside_a_field_are_told_from_those_around_it() -> None:
    lines = io.StringIO()
    events.configure(stream=lines)
    try:
        events.warn("capture.failed", error='publication "x" is gone', sink="lake")
    finally:
        events.configure()
    assert r'error="publication \"x\" is gone" sink=lake' in lines.getvalue()
