"""`tidemill verify FILE`: whether a sink's rows are the source's, while the pipeline runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import target, terminal

if TYPE_CHECKING:
    from tidemill.service.verify.verdicts import KeyVerdict, TableVerdict

app = terminal.commands()

NOT_COMPARED = 4
"""The exit code of a comparison that found nothing wrong, and left out a table."""

OfSink = Annotated[
    str | None, typer.Option("--sink", help="Which sink, if the pipeline has several.", show_default=False)
]
OfTable = Annotated[
    list[str] | None, typer.Option("--table", help="Only this table (schema.table or a pattern); may be repeated.")
]
Wait = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for a sink that lags.")]


Values = Annotated[bool, typer.Option("--values", help="Show the values that differ, the source's and the sink's.")]
Repair = Annotated[
    bool, typer.Option("--repair", help="Send missing and different rows again, and delete extra ones at the sink.")
]


@app.command()
def verify(
    file: target.File,
    sink: OfSink = None,
    table: OfTable = None,
    wait: Wait = 30,
    limit: Annotated[int, typer.Option(min=0, help="How many keys to show per table.")] = 20,
    values: Values = False,
    repair: Repair = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Compare every row of a sink with the source: equal, missing, extra, different. Safe while the pipeline runs.

    Exits with 1 if something differs, also after a repair; with 4 if nothing that was compared differs, but a table
    could not be compared. Shows keys and columns, and values only with --values.
    """
    from tidemill.service.verify.audit import VerifyOptions
    from tidemill.service.verify.audit import verify as compare

    options = VerifyOptions(wait, values, repair)
    found = list(compare(target.choose(file, pipeline), sink=sink, tables=table or (), options=options))
    if as_json:
        terminal.show_json(
            {
                "tables": [_data(one, limit) for one in found],
                "equal": all(one.is_equal for one in found),
                "not_compared": [one.table for one in found if not one.is_compared],
            }
        )
    else:
        _show(found, limit)
    if any(one.is_compared and not one.is_equal for one in found):
        raise typer.Exit(1)
    if not all(one.is_compared for one in found):
        raise typer.Exit(NOT_COMPARED)


def _show(found: list[TableVerdict], limit: int) -> None:
    columns = ("table", "rows", "missing", "extra", "different", "moving", "")
    terminal.show_table(columns, [(one.table, *_cells(one), _remarks(one)) for one in found])
    for one in found:
        for key in one.keys[:limit]:
            at = f" in {', '.join(key.columns)}" if key.columns else ""
            terminal.say(f"{one.table} ({', '.join(key.key)}): {key.fault}{at}")
            for column, (ours, theirs) in zip(key.columns, key.values, strict=False):
                terminal.say(f"  {column}: source {_value(ours)}, sink {_value(theirs)}")
        if len(one.keys) > limit:
            terminal.say(f"{one.table}: and {len(one.keys) - limit:,} more rows; --limit shows more of them")
        if (said := _repair(one)) != "":
            terminal.say(f"{one.table}: {said}")
        if one.fix:
            terminal.say(f"{one.table}: {one.fix}")


def _cells(one: TableVerdict) -> tuple[object, ...]:
    """Of a table that could not be compared nothing is known: no zeros."""
    if not one.is_compared:
        return ("-",) * 5
    return (f"{one.rows:,}", *_counts(one).values(), one.moving)


def _counts(one: TableVerdict) -> dict[str, int]:
    from tidemill.contracts import RowFault

    return {str(fault): one.count(fault) for fault in (RowFault.MISSING, RowFault.EXTRA, RowFault.DIFFERENT)}


def _remarks(one: TableVerdict) -> str:
    if not one.is_compared:
        return f"not compared: {one.error}"
    said = "equal" if one.is_equal else "differs"
    said += ", and there may be more" if one.more else ""
    said += "" if one.passed else "; not final: the sink had not passed the place of this look"
    return said + (f"; not compared: {', '.join(one.left_out)}" if one.left_out else "")


def _value(text: str | None) -> str:
    return "NULL" if text is None else repr(text)


def _repair(one: TableVerdict) -> str:
    done = one.repair
    if done is None:
        return ""
    rows = "all rows" if done.sent < 0 else _rows(done.sent)
    said = [f"{rows} sent again by snapshot {done.snapshot}"] if done.sent else []
    if done.sent and not done.arrived:
        said.append("they have not arrived yet (does the pipeline run?)")
    said += [f"{_rows(done.deleted, 'extra ')} deleted"] if done.deleted else []
    return "; ".join([*said, *([done.kept] if done.kept else [])]) or "nothing had to be repaired"


def _rows(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}row{'' if count == 1 else 's'}"


def _data(one: TableVerdict, limit: int) -> dict[str, Any]:
    """Of a table that could not be compared the numbers are null."""
    numbers: dict[str, Any] = {"rows": one.rows, **_counts(one), "moving": one.moving}
    return {
        "table": one.table, "compared": one.is_compared, "equal": one.is_equal,
        **(numbers if one.is_compared else dict.fromkeys(numbers)),
        "more": one.more, "passed": one.passed, "left_out": list(one.left_out), "error": one.error, "fix": one.fix,
        "keys": [_key_data(key) for key in one.keys[:limit]],
        "repair": None if one.repair is None else asdict(one.repair),
    }  # fmt: skip


def _key_data(key: KeyVerdict) -> dict[str, Any]:
    data: dict[str, Any] = {"key": list(key.key), "fault": str(key.fault), "columns": list(key.columns)}
    if key.values:
        data["values"] = {
            column: {"source": ours, "sink": theirs}
            for column, (ours, theirs) in zip(key.columns, key.values, strict=True)
        }
    return data
