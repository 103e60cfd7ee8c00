"""How commands speak: tables for people, JSON for programs, errors in three parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from tidemill.errors import TidemillError, to_data
from tidemill.telemetry.plain_text import without_controls

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", "--force", help="Do not ask.")]


class _Listing(TyperGroup):
    """A group that is also a command of its own: given a file, it lists (`tidemill drift FILE`)."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and args[0] not in self.commands and Path(args[0]).is_file():
            args = ["ls", *args]
        return super().resolve_command(ctx, args)


def commands(about: str = "", *, lists: bool = False) -> typer.Typer:
    """An `app` of one or more commands. Plain help: boxes do not survive a pipe, and they show flags as if they took a
    value. With `about` it is a group, which shows its help when it is called alone. `lists`: its `ls` may be left
    out."""
    return typer.Typer(
        help=about or None, no_args_is_help=bool(about), add_completion=False, rich_markup_mode=None,
        pretty_exceptions_enable=False, cls=_Listing if lists else TyperGroup,
    )  # fmt: skip


def show_json(value: Any) -> None:
    """One document, indented for the eye; keys keep their order."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode() + "\n")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", empty: str = "") -> None:
    """Numbers are aligned right. Text is printed as it is: a `[` in a table's name is not markup. Without rows the
    sentence `empty` stands there instead of a header over nothing."""
    content = [[*row] for row in rows]
    if empty and not content:
        say(empty)
        return
    above = escape(without_controls(title)) or None
    table = Table(box=None, pad_edge=False, title=above, title_justify="left", header_style="bold")
    for index, name in enumerate(columns):
        numeric = bool(content) and all(isinstance(row[index], int | float) for row in content)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in content:
        table.add_row(*(plain(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row))
    # A pipe has no width: a row stays on its line, for grep and awk.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def plain(text: str, style: str = "") -> Text:
    """As it is: a `[` is not markup, and nothing in it steers the terminal."""
    return Text(without_controls(text), style=style)


def say(text: str, style: str = "") -> None:
    Console(soft_wrap=True).print(plain(text, style))


def clear() -> None:
    """Before what is shown again and again: a terminal shows the newest only, a pipe gets all of it."""
    if sys.stdout.isatty():
        Console().clear()


def say_line(content: Any) -> None:
    """One line at once, also into a pipe; as JSON unless it is text."""
    is_text = isinstance(content, str)
    line = without_controls(content) if is_text else orjson.dumps(content, default=str).decode()
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def progress(text: str) -> None:
    """For people who wait, also beside an answer for machines."""
    Console(stderr=True, soft_wrap=True).print(plain(text))


def warn(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(plain(text, "yellow"))


def ask(consequence: str, refusal: type[TidemillError]) -> None:
    """Before something that cannot be undone. Nobody to ask is a `refusal`, a no ends the command with 1."""
    if not sys.stdin.isatty():
        raise refusal(f"not done without --yes: {consequence}", fix="Nothing was changed. If that is meant, add --yes.")
    warn(consequence)
    if not typer.confirm("Go on?"):
        raise typer.Exit(1)


def confirm(refusal: type[TidemillError], *, yes: bool) -> Callable[[str], None]:
    """What a use case calls before something that cannot be undone: `ask`, unless the answer was given already."""
    return lambda consequence: None if yes or not consequence else ask(consequence, refusal)


def show_error(error: TidemillError, *, as_json: bool) -> None:
    """What, where, fix: to standard error; as JSON to standard output, where a program reads its answer: one line, as
    everything that `run` prints."""
    if as_json:
        sys.stdout.write(orjson.dumps({"error": _as_data(error)}, default=str).decode() + "\n")
        return
    out = Console(stderr=True, soft_wrap=True)
    out.print(plain(f"error: {error.what}", "bold red"))
    if error.where:
        out.print(plain(f"  at {error.where}", "dim"))
    if error.fix:
        out.print(plain(error.fix))


def _as_data(error: TidemillError) -> dict[str, Any]:
    data: dict[str, Any] = {**to_data(error)}
    problems = getattr(error, "problems", ())
    if problems:
        data["problems"] = [{**asdict(p), "path": list(p.path), "where": p.where} for p in problems]
    return data
