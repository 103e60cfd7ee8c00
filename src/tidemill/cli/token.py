"""`tidemill token create|ls|revoke`: who may use a server's API. Works on the state store, not over the API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli import installation, terminal

app = terminal.commands("Who may use a server: make tokens, list and revoke them.")

_STATE_DIR = Path(".tidemill")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is; it stands in the record of changes.", show_default=False)],
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")] = "viewer",
    expires: Annotated[str | None, typer.Option(help="After 12h, 30d; never by default.", show_default=False)] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only for pipelines whose metadata.tenant is this.", show_default="all")
    ] = None,
    pipeline: Annotated[str | None, typer.Option(help="Only for this pipeline.", show_default="all")] = None,
    state: installation.StateStore = None,
    state_dir: installation.InstallationDir = _STATE_DIR,
    as_json: terminal.AsJson = False,
) -> None:
    """Make a token. It is shown once and kept nowhere."""
    from tidemill.errors import ConfigError
    from tidemill.service.server.scope import Scope
    from tidemill.service.server.tokens import Role, open_tokens
    from tidemill.state import inspect_store

    if role not in list(Role):
        raise ConfigError(f'"{role}" is no role', where="--role", fix=f"There are: {', '.join(Role)}.")
    for value, option in ((expires, "--expires"), (tenant, "--tenant"), (pipeline, "--pipeline")):
        installation.refuse_empty(value, option)
    if tenant and pipeline:
        raise ConfigError(
            "a token is for a tenant or for a pipeline", where="--tenant, --pipeline", fix="Give one of the two."
        )
    place = inspect_store(uri := installation.state_uri(state, state_dir))
    with open_tokens(uri, create=True) as tokens:
        secret, made = tokens.create(name, Role(role), expires=expires, scope=Scope(tenant or "", pipeline or ""))
    if place.version == 0:
        terminal.progress(f"There was no state store: made {place.where}. Only a server that uses it takes the token.")
    if as_json:
        terminal.show_json({"token": secret, "id": made.id, "role": made.role, "tenant": tenant,
                            "pipeline": pipeline, "expires_at": made.expires_at})  # fmt: skip
        return
    terminal.say(secret)


@app.command()
def ls(
    state: installation.StateStore = None,
    state_dir: installation.InstallationDir = _STATE_DIR,
    as_json: terminal.AsJson = False,
) -> None:
    """List tokens, without their secrets."""
    from tidemill.service.server.scope import Scope
    from tidemill.service.server.tokens import open_tokens, state_of

    with open_tokens(installation.state_uri(state, state_dir)) as tokens:
        found = tokens.list()
    if as_json:
        terminal.show_json({"tokens": [
            {"id": each.id, "name": each.name, "role": each.role, "tenant": each.tenant or None,
             "pipeline": each.pipeline or None, "state": state_of(each),
             "created_at": each.created_at, "expires_at": each.expires_at, "revoked_at": each.revoked_at}
            for each in found
        ]})  # fmt: skip
        return
    terminal.show_table(
        ("id", "name", "role", "for", "state", "created", "expires"),
        [
            (each.id, each.name, each.role, Scope(each.tenant, each.pipeline), state_of(each), each.created_at,
             each.expires_at)
            for each in found
        ],
        empty="There are no tokens. A server makes the first one when it starts.",
    )  # fmt: skip


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(help="As `ls` shows it.", show_default=False)],
    state: installation.StateStore = None,
    state_dir: installation.InstallationDir = _STATE_DIR,
    as_json: terminal.AsJson = False,
) -> None:
    """Revoke a token, at once."""
    from tidemill.service.server.tokens import open_tokens

    with open_tokens(installation.state_uri(state, state_dir)) as tokens:
        tokens.revoke(id)
    if as_json:
        terminal.show_json({"revoked": id})
    else:
        terminal.say(f"{id} is revoked")
