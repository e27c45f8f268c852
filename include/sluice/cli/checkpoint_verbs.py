"""`sluice checkpoint check` and `rehearse`: the checkpoints of streams, and their copies."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.checkpoints.checkpoint_copies import Rehearsal
from sluice.cli.cli_context import have_done, open_cli_context
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, AsJson, StreamName, print_json
from sluice.declarations.load_declarations import load_declarations
from sluice.launching.job_output import json_value
from sluice.ledger.connection import open_ledger
from sluice.ledger.recorded_checks import CheckpointObservation
from sluice.positions.check_checkpoints import check_checkpoints
from sluice.settings import load_settings
from sluice.work.requests import RehearseCopy

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def checkpoint() -> None:
    """The checkpoints of streams."""


@app.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="The streams; all that are declared when not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check checkpoints without Spark, record the findings, and end with 1 when one is not healthy."""
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    with open_ledger(settings.ledger_url) as ledger:
        checks = check_checkpoints(ledger, declarations, settings, streams=names or ())
    if as_json:
        print_json({"checks": [json_value(seen) | {"healthy": seen.healthy} for seen in checks]})
    else:
        for seen in checks:
            _print(seen)
        started = {seen.stream for seen in checks}
        for name in names or declarations.streams:
            if name not in started:
                typer.echo(f"{name}: not started yet, so there is no checkpoint")
    if not all(seen.healthy for seen in checks):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


@app.command()
def rehearse(name: StreamName, as_json: AsJson = False) -> None:
    """Put the newest copy of a stream's state into a folder of its own, and run a batch on it for its state alone.

    It ends with 1 when the copy does not do. What came of it is kept beside the copy: `sluice stream show` names it.
    """
    with open_cli_context() as ctx:
        ctx.declarations.stream(name)
        found = Rehearsal.model_validate(have_done(ctx, RehearseCopy(stream=name)))
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        typer.echo(
            f"The newest copy of the state of {name} was put back and batch {found.batch} run again on it in "
            f"{found.seconds:.0f} s; the state came out as it was."
        )


def _print(seen: CheckpointObservation) -> None:
    state = "healthy" if seen.healthy else "NOT HEALTHY"
    batch = "no batch yet" if seen.newest_batch is None else f"batch {seen.newest_batch}"
    age = "" if seen.newest_commit_age_seconds is None else f", {seen.newest_commit_age_seconds:.0f} s ago"
    typer.echo(f"{seen.stream}: {state}, generation {seen.generation}, {batch}{age}, {seen.location}")
    for finding in seen.problems:
        typer.echo(f"  {finding.name}: {finding.message}")
