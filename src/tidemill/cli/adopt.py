"""`tidemill adopt FILE`: makes a state directory that was copied or restored the pipeline's own (ownership.py)."""

from __future__ import annotations

from tidemill.cli import target, terminal

app = terminal.commands()


@app.command()
def adopt(
    file: target.File,
    yes: terminal.Yes = False,
    pipeline: target.Which = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Run a pipeline from a copied, restored or moved state directory. The pipeline must be stopped."""
    from tidemill.errors import EnvironmentProblem
    from tidemill.service.maintenance import adopt as service

    chosen = target.choose(file, pipeline)
    service.adopt(chosen, terminal.confirm(EnvironmentProblem, yes=yes))
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "state": str(chosen.state_path)})
        return
    terminal.say(f"{chosen.state_path} is the state directory of {chosen.name} now")
