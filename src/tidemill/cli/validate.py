"""`tidemill validate FILE…`: reads pipeline files as `run` would, and shows what they resolve to."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import terminal
from tidemill.cli.target import Files, load_pipelines

app = terminal.commands()


@app.command()
def validate(
    files: Files = None,
    env: Annotated[bool, typer.Option("--env", help="Check the pipeline that TIDEMILL__… variables give.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only say whether the files are right.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Check pipeline files and show what they resolve to, defaults included, secrets hidden, and where each value that
    is no default came from. Compiles the scripts of processors. Connects to nothing."""
    pipelines = load_pipelines(files or [], "validate", env=env)

    import yaml

    from tidemill.config.notes import notes
    from tidemill.service.code_checks import check_code
    from tidemill.service.run.once import check_ends

    check_ends(pipelines)
    unchecked = check_code(pipelines)
    if as_json:
        terminal.show_json(
            {
                "pipelines": [
                    {
                        "file": p.file,
                        **p.mask_secrets(),
                        "notes": [what for what, _ in (*notes(p), *unchecked.get(p.name, ()))],
                        "origins": dict(p.origins),
                    }
                    for p in pipelines
                ]
            }
        )
        return
    for pipeline in pipelines:
        if not quiet:
            terminal.say(
                yaml.safe_dump(pipeline.mask_secrets(), sort_keys=False, allow_unicode=True, default_flow_style=False)
            )
            for path, origin in pipeline.origins.items():  # as comments: what is printed stays YAML
                terminal.say(f"# {path}: {origin}")
        for what, fix in (*notes(pipeline), *unchecked.get(pipeline.name, ())):
            terminal.warn(f"note: {what}. {fix}")
    for pipeline in pipelines:  # last: what one looks for after a screen of YAML
        terminal.say(f"{pipeline.file}: pipeline {pipeline.name} is right", style="green")
