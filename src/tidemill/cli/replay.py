"""`tidemill replay FILE --from WHERE`: a range of the change log to one sink again, or to a new one."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import target, terminal
from tidemill.errors import DeliveryError

app = terminal.commands()

_PLACE = "an offset, a time (ISO 8601) or a position of the source"
From = Annotated[str, typer.Option("--from", help=f"Where the range begins: {_PLACE}.", show_default=False)]
To = Annotated[
    str | None,
    typer.Option("--to", help="Where it ends, likewise; as far as the sink is by default.", show_default=False),
]
OfSink = Annotated[
    str | None, typer.Option("--sink", help="To which sink, if the pipeline has several.", show_default=False)
]
OfTable = Annotated[
    list[str] | None, typer.Option("--table", help="Only events of this table (* and ? match); may be repeated.")
]


@app.command()
def replay(
    file: target.File,
    begin: From,
    end: To = None,
    sink: OfSink = None,
    table: OfTable = None,
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Deliver what the log still holds to a sink again, or to a new sink for the first time.

    The pipeline must be stopped. Positions stay where they are. A sink that holds rows gets them back as they were at
    the end of the range: leave --to out, to have them as they are now.
    """
    from tidemill.service.redelivery.replay import plan_range, replay_range

    chosen = target.choose(file, pipeline)
    intended = plan_range(chosen, begin, end, sink=sink, tables=table or ())
    terminal.confirm(DeliveryError, yes=yes)(intended.consequence)
    done = replay_range(chosen, intended)
    if as_json:
        terminal.show_json({
            "pipeline": chosen.name, "sink": intended.sink, "start": intended.start, "end": intended.end,
            "delivered": done.events, "skipped": done.skipped, "dead_letters": done.dead_letters,
            "tables": list(intended.tables),
        })  # fmt: skip
        return
    rest = f", {done.skipped:,} that it had already" if done.skipped else ""
    rest += (
        f", without {done.dead_letters:,} dead letters (tidemill dlq replay sends those)" if done.dead_letters else ""
    )
    terminal.say(f'{done.events:,} events delivered to sink "{intended.sink}"{rest}')
