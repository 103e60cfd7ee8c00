"""`tidemill validate FILE…`: reads pipeline files as `run` would, and shows what they resolve to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import terminal

app = terminal.commands()


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="Pipeline files.", show_default=False)],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only say whether the files are right.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Check pipeline files and show what they resolve to, defaults included, secrets hidden. Connects to nothing."""
    import yaml

    from tidemill import config
    from tidemill.config.notes import notes

    pipelines = config.load_all(files)
    if as_json:
        terminal.show_json(
            {"pipelines": [{"file": p.file, **p.masked(), "notes": [what for what, _ in notes(p)]} for p in pipelines]}
        )
        return
    for pipeline in pipelines:
        terminal.say(f"{pipeline.file}: pipeline {pipeline.name} is right", style="green")
        for what, fix in notes(pipeline):
            terminal.warn(f"note: {what}. {fix}")
        if not quiet:
            terminal.say(
                yaml.safe_dump(pipeline.masked(), sort_keys=False, allow_unicode=True, default_flow_style=False)
            )
