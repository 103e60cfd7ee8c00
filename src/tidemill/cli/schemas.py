"""`tidemill schemas ls|show|versions|diff|at|scan`: versions of tables, as the registry numbers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import target, terminal
from tidemill.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.service.schema.versions import Registration, VersionComparison

app = terminal.commands("See which structures tables have had, how they differ, and which was in force where.")

OfTable = Annotated[str, typer.Argument(metavar="TABLE", help="As `ls` shows it.", show_default=False)]


@app.command()
def ls(file: target.File, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """List the newest version of every table."""
    from tidemill.service.schema.versions import newest_schemas

    chosen = target.choose(file, pipeline)
    found = newest_schemas(chosen)
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "schemas": [_head(each) for each in found]})
        return
    terminal.show_table(
        ("table", "version", "sequence", "columns", "key", "first met at", "registered"),
        [
            (
                each.table.full_name, each.table.version, each.table.sequence, len(each.table.columns),
                ", ".join(each.table.key), each.position, each.registered_at,
            )
            for each in found
        ],
        empty=f"{chosen.name} has met no table yet: a version is registered with a table's first event.",
    )  # fmt: skip


@app.command()
def show(
    file: target.File,
    table: OfTable,
    version: Annotated[int | None, typer.Option(help="Which version; the newest if none is named.")] = None,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show the columns of one version of a table."""
    from tidemill.service.schema.versions import schema_version

    _show(schema_version(target.choose(file, pipeline), table, version), as_json=as_json)


@app.command()
def versions(
    file: target.File, table: OfTable, pipeline: target.Which = None, as_json: terminal.AsJson = False
) -> None:
    """List the versions of a table, oldest first.

    Each with whether it is compatible with the one before it."""
    from tidemill.service.schema.versions import schema_versions

    found = schema_versions(target.choose(file, pipeline), table)
    if as_json:
        described = [{**_head(each.registration), "compatibility": _compare(each.against_previous)} for each in found]
        terminal.show_json({"table": table, "versions": described})
        return
    terminal.show_table(
        ("version", "sequence", "columns", "first met at", "registered", "compatible"),
        [
            (
                each.registration.table.version, each.registration.table.sequence,
                len(each.registration.table.columns), each.registration.position, each.registration.registered_at,
                str(each.against_previous.compatibility) if each.against_previous else "",
            )
            for each in found
        ],
    )  # fmt: skip


@app.command()
def diff(
    file: target.File,
    table: OfTable,
    old: Annotated[int, typer.Argument(help="A version.", show_default=False)],
    new: Annotated[int, typer.Argument(help="Another one.", show_default=False)],
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show what differs between two versions of a table.

    And whether they are compatible."""
    from tidemill.service.schema.versions import diff_versions

    found = diff_versions(target.choose(file, pipeline), table, old, new)
    changes = found.changes
    rows = [("added", c.name, "", c.type.native) for c in changes.added]
    rows += [("dropped", c.name, c.type.native, "") for c in changes.dropped]
    rows += [("renamed", f"{was.name} to {now.name}", "", "") for was, now in changes.renamed]
    rows += [("changed", now.name, _describe(was), _describe(now)) for was, now in changes.changed]
    rows += [("replaced", now.name, _describe(was), _describe(now)) for was, now in changes.replaced]
    if found.old.key != found.new.key:
        rows.append(("key", "", ", ".join(found.old.key), ", ".join(found.new.key)))
    if as_json:
        named = [dict(zip(("change", "column", "old", "new"), row, strict=True)) for row in rows]
        terminal.show_json(
            {"table": table, "old": old, "new": new, "changes": named, "compatibility": _compare(found.comparison)}
        )
        return
    terminal.show_table(
        ("change", "column", "old", "new"), rows, empty=f"Versions {old} and {new} have the same columns."
    )
    terminal.say(f"compatible: {found.comparison.compatibility}")
    for reason in found.comparison.backward:
        terminal.say(f"not backward: {reason}")
    for reason in found.comparison.forward:
        terminal.say(f"not forward: {reason}")


@app.command()
def scan(
    file: target.File,
    accept: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Take this table as it is now.", show_default=False)
    ] = None,
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Compare the source's catalog with the registry now. Connects to the source. Safe while the pipeline runs."""
    from tidemill.service.schema.scan import accept_catalog, describe_catalog_finding, scan_catalog

    chosen = target.choose(file, pipeline)
    if accept is not None:
        terminal.confirm(ConfigError, yes=yes)(f"what the catalog says of {accept} now is no drift any more")
        settled = accept_catalog(chosen, accept)
        if as_json:
            terminal.show_json({"pipeline": chosen.name, "table": accept, "accepted": settled})
        else:
            terminal.say(f"{settled} accepted")
        return
    report = scan_catalog(chosen)
    if as_json:
        found = [describe_catalog_finding(each) for each in report.findings]
        unknown = list(report.unknown)
        terminal.show_json(
            {"pipeline": chosen.name, "tables": report.tables, "findings": found, "without_baseline": unknown}
        )
        return
    if report.findings:
        terminal.show_table(
            ("table", "kind", "column", "what"),
            [(each.table, str(each.kind), each.subject, each.what) for each in report.findings],
        )
    terminal.say(f"{report.tables} tables compared, {len(report.findings)} findings")
    if report.unknown:
        terminal.say(f"defaults and expressions not compared yet, no scan has noted them: {', '.join(report.unknown)}")


@app.command()
def at(
    file: target.File,
    table: OfTable,
    offset: Annotated[int | None, typer.Option(min=0, help="An offset of the log.", show_default=False)] = None,
    sequence: Annotated[
        int | None, typer.Option(min=1, help="A schema_sequence, as events carry it.", show_default=False)
    ] = None,
    position: Annotated[str | None, typer.Option(help="A position of the source.", show_default=False)] = None,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show the version of a table that was in force somewhere.

    At an offset, a position of the source, or a sequence."""
    from tidemill.service.schema.versions import schema_at

    chosen = target.choose(file, pipeline)
    _show(schema_at(chosen, table, offset=offset, sequence=sequence, position=position), as_json=as_json)


def _show(found: Registration, *, as_json: bool) -> None:
    table = found.table
    columns: list[dict[str, Any]] = [
        {
            "name": column.name, "type": column.type.native, "arrow": str(column.type.arrow),
            "json": str(column.type.json), "nullable": column.nullable, "generated": column.generated,
            "key": column.name in table.key,
        }
        for column in table.columns
    ]  # fmt: skip
    if as_json:
        terminal.show_json({**_head(found), "columns": columns})
        return
    terminal.say(
        f"{table.full_name}, version {table.version}, sequence {table.sequence}, first met at {found.position}"
    )
    terminal.show_table(
        ("column", "type", "Arrow", "null", "key"),
        [
            (c["name"], c["type"], c["arrow"], "yes" if c["nullable"] else "no", "yes" if c["key"] else "")
            for c in columns
        ],
    )


def _head(found: Registration) -> dict[str, Any]:
    table = found.table
    return {
        "table": table.full_name, "database": table.database, "version": table.version, "sequence": table.sequence,
        "fingerprint": table.fingerprint, "key": list(table.key), "identity": table.identity,
        "position": found.position, "registered_at": found.registered_at,
    }  # fmt: skip


def _compare(comparison: VersionComparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {
        "compatibility": str(comparison.compatibility), "not_backward": list(comparison.backward),
        "not_forward": list(comparison.forward),
    }  # fmt: skip


def _describe(column: Any) -> str:
    return f"{column.type.native}{'' if column.nullable else ' not null'}"
