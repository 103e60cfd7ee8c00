"""`tidemill ddl`: changes of tables on their way to the sinks, and decisions on those that wait at the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import target, terminal

if TYPE_CHECKING:
    from tidemill.contracts.schema_change_store import Decision, SinkOutcome, StoredChange

app = terminal.commands("Changes of tables: plan, ls, show, approve, reject, apply.")

Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="As `ls` shows it.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why, for the record and the audit trail.")]


@app.command()
def plan(file: target.File, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """Show what every sink would do about changes in the log.

    Those that have not come to the sinks yet. Changes nothing."""
    from tidemill.service.schema.changes import describe_outcome, plan_changes

    chosen = target.choose(file, pipeline)
    found = plan_changes(chosen)
    if as_json:
        documents = [
            {
                "offset": each.offset, "table": each.table, "kinds": list(each.kinds), "text": each.text,
                "action": each.action,
                "sinks": [describe_outcome(sink, outcome) for sink, outcome in sorted(each.plans.items())],
            }
            for each in found
        ]  # fmt: skip
        terminal.show_json({"pipeline": chosen.name, "changes": documents})
        return
    terminal.show_table(
        ("offset", "table", "kinds", "action", "sink", "would run"),
        [
            (each.offset, each.table, ", ".join(each.kinds), each.action, sink, _describe_outcome(outcome))
            for each in found
            for sink, outcome in sorted(each.plans.items())
        ],
        empty=f"No schema change waits in the log of {chosen.name}.",
    )


@app.command()
def ls(
    file: target.File,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most, newest first.")] = 100,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List changes that came to the sinks, and who decided."""
    from tidemill.service.schema.changes import describe_change, list_changes

    chosen = target.choose(file, pipeline)
    found = list_changes(chosen, limit)
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "changes": [describe_change(each) for each in found]})
        return
    terminal.show_table(
        ("number", "status", "table", "kinds", "offset", "seen", "decided by", "reason"),
        [
            (each.number, str(each.status), each.table, ", ".join(each.kinds), each.offset, each.seen_at, each.actor,
             each.reason)
            for each in found
        ],
        empty=f"No schema change has come to the sinks of {chosen.name} yet; `tidemill ddl plan` shows those to come.",
    )  # fmt: skip


@app.command()
def show(file: target.File, number: Number, pipeline: target.Which = None, as_json: terminal.AsJson = False) -> None:
    """Show one change, and what each sink ran or would run.

    With the source's statement, who decided, and why."""
    from tidemill.service.schema.changes import describe_change, show_change

    chosen = target.choose(file, pipeline)
    found = show_change(chosen, number)
    described = describe_change(found, whole=True)
    if as_json:
        terminal.show_json({"pipeline": chosen.name, **described})
        return
    terminal.say(
        f"{found.table}: {', '.join(found.kinds)}, {found.status}, at offset {found.offset} ({found.position})"
    )
    if found.text:
        terminal.say(found.text)
    for change in described["changes"] if found.before else ():
        terminal.say(f"  {_describe(change)}")
    if found.actor:
        terminal.say(f"{found.decision} by {found.actor} at {found.decided_at} {found.reason}".rstrip())
    terminal.show_table(
        ("sink", "status", "statements"),
        [
            (sink, outcome.status or "not reached", f"{_tense(outcome, found)} {_describe_outcome(outcome)}")
            for sink, outcome in sorted(found.outcomes.items())
        ],
        empty="No sink has come to it yet.",
    )


_DECISIONS = {
    "approve": ("APPROVED", "Let a change pass: every sink makes it, and rows go on."),
    "reject": (
        "REJECTED",
        "Refuse a change.\n\nThe pipeline stops there, or goes on with the old structure, as `ddl.on_reject` says. A"
        " table in quarantine goes on with the old structure.",
    ),
    "apply": (
        "MADE",
        "Say that you have made a change yourself.\n\nNo statement is run for it at the destinations, and rows go on.",
    ),
}


def _add_decision(name: str, decision: str, what: str) -> None:
    @app.command(name, help=what)
    def decide(
        file: target.File,
        number: Number,
        reason: Reason = "",
        pipeline: target.Which = None,
        as_json: terminal.AsJson = False,
    ) -> None:
        from tidemill.contracts.schema_change_store import Decision

        _decide(file, number, Decision[decision], reason, pipeline, as_json=as_json)


for _name, _decision in _DECISIONS.items():
    _add_decision(_name, *_decision)


def _decide(
    file: target.File, number: int, decision: Decision, reason: str, pipeline: str | None, *, as_json: bool
) -> None:
    from tidemill.service.cause import Cause, current_actor
    from tidemill.service.schema.changes import decide, describe_change

    chosen = target.choose(file, pipeline)
    found = decide(chosen, number, decision, Cause(current_actor(), reason))
    if as_json:
        terminal.show_json({"pipeline": chosen.name, **describe_change(found, whole=True)})
    else:
        terminal.say(f"{chosen.name}: schema change {number} of {found.table} is {found.status}")


def _describe(change: dict[str, Any]) -> str:
    """In a line: `add n integer`, `rename v to w`, `n integer null to bigint null`, `key id to id, w`."""
    match change["change"]:
        case "add":
            return f"add {change['column']} {_type(change)}"
        case "drop":
            return f"drop {change['column']} {change['type']}"
        case "rename":
            return f"rename {change['from']} to {change['column']}"
        case "modify":
            return f"{change['column']}: {_type(change['from'])} to {_type(change['to'])}"
        case "key":
            return f"key: {', '.join(change['from']) or 'none'} to {', '.join(change['to']) or 'none'}"
        case _:
            return f"{change['change'].replace('_', ' ')}: {change.get('from')} to {change.get('to')}"


def _type(column: dict[str, Any]) -> str:
    return column["type"] + ("" if column["nullable"] else " not null") + (" generated" * bool(column.get("generated")))


def _tense(outcome: SinkOutcome, change: StoredChange) -> str:
    """Before the sink was reached its statements are a plan; an ignored change, or one that an operator made, runs none
    of them."""
    if change.decision == "made" and not outcome.status:
        return "does not run:"
    return {"": "would run:", "applied": "ran:", "failed": "tried:"}.get(outcome.status, "did not run:")


def _describe_outcome(outcome: SinkOutcome) -> str:
    """What a sink refused of a change stands after what it made of it."""
    return "; ".join(filter(None, [*outcome.statements, outcome.error])) or "nothing"
