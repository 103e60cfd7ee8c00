"""`tidemill schema`: the JSON Schema that makes editors complete and check pipeline files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import terminal

app = terminal.commands()


@app.command()
def schema(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead.")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Print the JSON Schema of pipeline files; --json changes nothing, it is JSON already.

    Editors with the YAML language server take it by a first line in the pipeline file:
    # yaml-language-server: $schema=./tidemill.schema.json
    """
    from tidemill.config import json_schema
    from tidemill.service.documents import write_schema

    if output is None:
        terminal.show_json(json_schema())
    else:
        write_schema(output)
