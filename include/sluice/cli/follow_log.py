"""`sluice stream logs`: the log of a stream's run, and what is appended to it until the run ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer

from sluice.cli.cli_context import open_cli_context
from sluice.cli.command_options import AsJson, StreamName
from sluice.cli.terminal import print_json
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import find_run, recent_runs

_POLL_SECONDS = 0.3
_LEDGER_POLL_SECONDS = 3.0
"""The interval at which the follower of a log asks the ledger whether the run has ended."""
_SEARCHED_RUNS = 1000


def logs(
    name: StreamName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run ends.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=1_000_000, help="How many of the last lines.")
    ] = 100,
    run: Annotated[
        str | None, typer.Option(help="The run's id, or its first characters; the newest run when not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the last lines of the log of a stream's run."""
    if follow and as_json:
        raise UsageError("--follow prints lines as they come, so it does not go with --json.")
    with open_cli_context() as ctx:
        if not ctx.is_known_by_ledger_only(name):
            ctx.declarations.stream(name)
        observed = _find_run(ctx.ledger, name, run)
        log_file = _log_file(observed)
        with log_file.open(errors="replace") as log:
            tail = log.read().splitlines(keepends=True)[-lines:]
            if as_json:
                tail_lines = "".join(tail).splitlines()
                print_json({"run_id": observed.run_id, "log_file": str(log_file), "lines": tail_lines})
                return
            typer.echo("".join(tail), nl=False)
            for text in _follow(ctx.ledger, observed, log) if follow else ():
                typer.echo(text, nl=False)


def _find_run(ledger: Ledger, name: str, run_id: str | None) -> RunObservation:
    runs = recent_runs(ledger, name, limit=1 if run_id is None else _SEARCHED_RUNS)
    for run in runs:
        if run_id is None or run.run_id.startswith(run_id):
            return run
    which = "" if run_id is None else f" that begins with {run_id}"
    raise UsageError(f"Stream {name} has no run{which}.", next_step=f"See its runs with `sluice stream show {name}`.")


def _log_file(run: RunObservation) -> Path:
    if run.log_file is None:
        raise UsageError(
            f"Run {run.run_id} has no log of its own.",
            next_step=f"It was launched by {run.launched_by}, and its output is in that log.",
        )
    if not run.log_file.exists():
        host = run.process.host if run.process is not None else "another host"
        raise UsageError(f"{run.log_file} is not on this host.", next_step=f"Look on {host}.")
    return run.log_file


def _follow(ledger: Ledger, run: RunObservation, log: TextIO) -> Iterator[str]:
    """Yield what is appended to the log, until the run has ended."""
    is_live, ask_at = True, 0.0
    while is_live:
        if time.monotonic() >= ask_at:
            is_live, ask_at = find_run(ledger, run.run_id).is_live, time.monotonic() + _LEDGER_POLL_SECONDS
        if os.fstat(log.fileno()).st_size < log.tell():
            log.seek(0)  # the log reached its limit and was truncated
        if text := log.read():
            yield text
        else:
            time.sleep(_POLL_SECONDS)
    yield log.read()
