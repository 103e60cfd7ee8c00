"""`tidemill sensing ls|show|json-schema|stats`: schemas inferred from events."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import target, terminal

app = terminal.commands("See the schemas that were inferred from events.")

OfTable = Annotated[str, typer.Argument(metavar="TABLE", help="As `ls` shows it.", show_default=False)]


@app.command()
def ls(file: target.File, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """List the tables whose events were looked at."""
    from tidemill.service.schema.sensing import inferred_schemas

    chosen = target.choose(file, pipeline)
    found = inferred_schemas(chosen)
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "schemas": [each.summary() for each in found]})
        return
    terminal.show_table(
        ("table", "version", "columns", "events", "looked at", "last position"),
        [
            (
                each.name, each.version, len(each.profile.columns), each.profile.events, each.profile.sampled,
                each.profile.last.position if each.profile.last else "",
            )
            for each in found
        ],
        empty=f"{chosen.name} has looked at no events yet. Does its document have schema_sensing.enabled?",
    )  # fmt: skip


@app.command()
def show(file: target.File, table: OfTable, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """Show the columns of a table as its events have them.

    And the paths of its JSON documents."""
    from tidemill.service.schema.sensing import inferred_schema

    found = inferred_schema(target.choose(file, pipeline), table)
    if as_json:
        terminal.show_json(found.describe())
        return
    columns = found.profile.columns
    terminal.show_table(
        ("column", "type", "looked at", "null", "range", "values", "formats"),
        [
            (
                name, column.type.native, column.values, f"{column.null_rate:.1%}",
                " to ".join(bound[1] for bound in column.range) if column.range else "",
                "many" if column.many else ", ".join(sorted(column.enumeration or ())),
                ", ".join(sorted(column.formats or ())),
            )
            for name, column in columns.items()
        ],
    )  # fmt: skip
    documents = [
        (f"{name}{path}", " or ".join(kinds), f"{share:.1%}" if share is not None else "")
        for name, column in columns.items()
        for path, kinds, share in column.described_paths()
    ]
    if documents:
        terminal.show_table(("path", "type", "of documents"), documents)


@app.command("json-schema")
def json_schema(
    file: target.File, table: OfTable, pipeline: target.Which = None, as_json: terminal.AsJson = False
) -> None:
    """Print the JSON Schema (2020-12) of a table's rows.

    Always as JSON. Every event looked at is valid against it."""
    from tidemill.service.schema.sensing import export_json_schema

    terminal.show_json(export_json_schema(target.choose(file, pipeline), table))


@app.command()
def stats(file: target.File, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """How much was looked at."""
    from tidemill.service.schema.sensing import statistics

    found = statistics(target.choose(file, pipeline))
    if as_json:
        terminal.show_json(found)
        return
    terminal.show_table(
        ("table", "events", "looked at", "columns", "JSON columns", "documents", "paths"),
        [tuple(table.values()) for table in found["tables"]],
        empty="No events were looked at yet.",
    )
    terminal.say(f"{found['sampled']:,} of {found['events']:,} events, up to offset {found['offset']:,}")
