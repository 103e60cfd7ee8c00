"""`tidemill doctor [FILE…]`: is everything there that a pipeline needs? Looks, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import target, terminal

if TYPE_CHECKING:
    from tidemill.contracts import Check

app = terminal.commands()

_STYLE = {"pass": "green", "warn": "yellow", "fail": "bold red"}


@app.command()
def doctor(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Pipeline files; without one, only this machine.", show_default=False, callback=target.check_files
        ),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Check this machine and, for each pipeline, its source, sinks, stores, state directory and change log.

    Exit code 3 if a check fails.
    """
    from tidemill import config
    from tidemill.service.checks import machine, pipeline

    # The document is read first: a mistake in it (exit code 2) makes the rest pointless.
    pipelines = config.load_all(files) if files else []
    report: list[tuple[str, list[Check]]] = [("this machine", list(machine()))]
    report += [(f"pipeline {p.name}", list(pipeline(p))) for p in pipelines]
    failed, warned = (sum(c.outcome == kind for _, checks in report for c in checks) for kind in ("fail", "warn"))
    if as_json:
        terminal.show_json(
            {
                "ok": not failed,
                "checks": [{"subject": subject, **asdict(check)} for subject, checks in report for check in checks],
            }
        )
    else:
        for subject, checks in report:
            _show(subject, checks)
        said, style = f"{failed} failed, {warned} to look at", _STYLE["fail" if failed else "warn"]
        terminal.say(*("everything is there", "green") if not failed and not warned else (said, style))
    if failed:
        raise typer.Exit(3)


def _show(subject: str, checks: Iterable[Check]) -> None:
    terminal.say(subject, style="bold")
    for check in checks:
        detail = " ".join(check.detail.split())  # drivers answer in several lines, the second of which is the fix here
        terminal.say(f"  {check.outcome:4}  {check.name}: {detail}", style=_STYLE[check.outcome])
        if check.fix:
            terminal.say(f"        {check.fix}")
