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
    from tidemill.errors import ConfigError, EnvironmentProblem
    from tidemill.service.ownership import lock_pipeline

    chosen = target.choose(file, pipeline)
    if not chosen.state_path.is_dir():
        raise ConfigError(
            "there is no state directory to adopt", where=str(chosen.state_path), fix="`tidemill run` makes a new one."
        )
    try:
        with lock_pipeline(chosen):
            pass
    except EnvironmentProblem:
        pass  # a copy: what this command is for. A pipeline that runs has been refused before anybody is asked.
    else:
        raise ConfigError(
            "this is no copy, so there is nothing to adopt", where=str(chosen.state_path),
            fix=f"The pipeline runs from it as it is: tidemill run {chosen.file}",
        )  # fmt: skip
    if not yes:
        terminal.ask(
            f"{chosen.name} will run from {chosen.state_path}: the directory that it was copied from must never run "
            "again. What was captured or delivered from there since the copy was made is captured or delivered again, "
            "and sinks may take new events for old ones",
            EnvironmentProblem,
        )
    with lock_pipeline(chosen, adopt=True):
        pass
    if as_json:
        terminal.show_json({"pipeline": chosen.name, "state": str(chosen.state_path)})
        return
    terminal.say(f"{chosen.state_path} is the state directory of {chosen.name} now")
