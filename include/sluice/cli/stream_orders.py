"""`sluice stream start | stop | restart | reset | reset-breaker | logs`: what a person does with a stream."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.cli.cli_context import Workplace
    from sluice.declarations.loaded import LoadedStream
    from sluice.ledger.connection import Ledger
    from sluice.ledger.records.desired_state import DesiredStateObservation
    from sluice.ledger.records.run import RunObservation
    from sluice.supervision.stream_commands import ControlPlan
    from sluice.supervision.supervisor import Supervised

StreamName = Annotated[str, typer.Argument(help="The stream's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]

_FORMER_KEYS = {
    "requested_at": "wished_at",
    "requested_by": "wished_by",
    "suspension": "hold",
    "suspended_at": "held_at",
}

_FOLLOW_SECONDS = 0.3
_LEDGER_SECONDS = 3.0
"""How often the follower of a log asks the ledger whether the run has ended."""


def add_control_verbs(stream_app: typer.Typer) -> None:
    """Add the verbs of this file to `sluice stream`."""
    for verb in (start, stop, restart, reset, logs):
        stream_app.command()(verb)
    stream_app.command("reset-breaker")(reset_breaker)


def start(name: StreamName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Ask that a stream runs, forgive its failures, and start its driver when none lives."""
    from sluice.cli.cli_context import open_workplace
    from sluice.supervision.stream_commands import plan_start

    with open_workplace() as here:
        stream = here.declarations.stream(name)
        if dry_run:
            _print_plans([plan_start(here.supervisor(), stream)], as_json=as_json)
            return
        _start(here, stream, as_json=as_json)


def stop(name: StreamName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Ask that a stream stops, and wait: it finishes its batch. It stays stopped until somebody starts it."""
    from sluice.cli.cli_context import open_workplace
    from sluice.supervision.stream_commands import plan_stop

    with open_workplace() as here:
        stream = here.declarations.stream(name)
        if dry_run:
            _print_plans([plan_stop(here.supervisor(), stream)], as_json=as_json)
            return
        ended = _stop(here, stream)
    if as_json:
        _print_run("stop", name, ended)
    elif ended is None:
        typer.echo(f"{name} is stopped; it never ran.")
    else:
        typer.echo(f"{name} is stopped. Its newest run {ended.run_id} ended: {ended.reason}.")


def restart(name: StreamName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Stop a stream between two batches and start it again, with its declaration as it is now."""
    from sluice.cli.cli_context import open_workplace
    from sluice.supervision.stream_commands import plan_restart

    with open_workplace() as here:
        stream = here.declarations.stream(name)
        if dry_run:
            _print_plans([plan_restart(here.supervisor(), stream)], as_json=as_json)
            return
        _print_start("restart", stream, _restart(here, stream), as_json=as_json)


def reset(
    name: StreamName,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Leave a stopped stream's checkpoint behind: the next start reads anew from the declared beginning.

    The old checkpoint is kept, and what is published stays published. The plan is shown, and asked about.
    """
    from sluice.cli.cli_context import open_workplace, person
    from sluice.launching.job_output import json_value
    from sluice.supervision.stream_reset import plan_reset, reset_stream

    with open_workplace() as here:
        stream = here.declarations.stream(name)
        plan = plan_reset(here.ledger, stream, here.settings)
        if dry_run:
            _print_plans([plan], as_json=as_json)
            return
        if not yes:
            _require_consent(plan)
        opened = reset_stream(here.ledger, stream, here.settings, leaving=plan.leaves, asked_by=person())
    if as_json:
        typer.echo(json.dumps({"verb": "reset", "plan": json_value(plan), "generation": json_value(opened)}, indent=2))
    else:
        typer.echo(f"Generation {opened.generation} of {name} is open: `sluice stream start {name}` reads anew.")


def reset_breaker(name: StreamName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Forgive a stream's failures, so that it is started again at once; what was asked of it stays."""
    from sluice.cli.cli_context import open_workplace, person
    from sluice.supervision.stream_commands import plan_reset_breaker, reset_breaker

    with open_workplace() as here:
        stream = here.declarations.stream(name)
        if dry_run:
            _print_plans([plan_reset_breaker(here.supervisor(), stream)], as_json=as_json)
            return
        desired = reset_breaker(here.supervisor(), stream, requested_by=person())
    if as_json:
        typer.echo(json.dumps({"verb": "reset-breaker", "wish": _request_json(desired)}, indent=2))
    else:
        typer.echo(f"The failures of {name} are forgiven. It is to be {desired.effective_state}.")


def _request_json(desired: DesiredStateObservation) -> dict[str, Any]:
    """A desired state under the keys that programs know from earlier versions."""
    from sluice.launching.job_output import json_value

    return {_FORMER_KEYS.get(name, name): value for name, value in json_value(desired).items()}


def logs(
    name: StreamName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=1_000_000, help="How many of the last lines.")
    ] = 100,
    run: Annotated[str | None, typer.Option(help="The run's id, or how it begins; the newest when not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """The last lines of the log of a stream's run."""
    from sluice.cli.cli_context import open_workplace
    from sluice.errors import UsageError

    if follow and as_json:
        raise UsageError("--follow prints lines as they come, so it does not go with --json.")
    with open_workplace() as here:
        here.declarations.stream(name)
        observed = _run_of(here.ledger, name, run)
        log_file = _log_of(observed)
        with log_file.open(errors="replace") as log:
            tail = log.read().splitlines(keepends=True)[-lines:]
            if as_json:
                document = {"run_id": observed.run_id, "log_file": str(log_file), "lines": "".join(tail).splitlines()}
                typer.echo(json.dumps(document, indent=2))
                return
            typer.echo("".join(tail), nl=False)
            for text in _follow(here.ledger, observed, log) if follow else ():
                typer.echo(text, nl=False)


def _start(here: Workplace, stream: LoadedStream, *, as_json: bool) -> None:
    from sluice.cli.cli_context import person
    from sluice.supervision.stream_commands import start_stream

    _print_start("start", stream, start_stream(here.supervisor(), stream, requested_by=person()), as_json=as_json)


def _restart(here: Workplace, stream: LoadedStream) -> Supervised | None:
    """Restart it, telling on stderr what is waited for."""
    from rich.console import Console

    from sluice.cli.cli_context import person
    from sluice.supervision.stream_commands import restart_stream

    with Console(stderr=True).status(f"{stream.name} is asked to end its run") as spinner:
        return restart_stream(here.supervisor(), stream, requested_by=person(), on_look=spinner.update)


def _print_start(verb: str, stream: LoadedStream, started: Supervised | None, *, as_json: bool) -> None:
    run = None if started is None else started.run
    if as_json:
        _print_run(verb, stream.name, run)
    elif started is None or run is None:
        typer.echo(f"{stream.name} is wanted. It is incremental: its DAG starts the next run when its schedule says.")
    else:
        typer.echo(f"{stream.name}: {started.decision.action}: {started.decision.explanation}")
        typer.echo(f"run {run.run_id}, log {run.log_file}")


def _stop(here: Workplace, stream: LoadedStream) -> RunObservation | None:
    """Stop it, telling on stderr what is waited for."""
    from rich.console import Console

    from sluice.cli.cli_context import person
    from sluice.supervision.stream_commands import stop_stream

    console = Console(stderr=True)
    with console.status(f"{stream.name} is asked to stop") as spinner:
        return stop_stream(here.supervisor(), stream, requested_by=person(), on_look=spinner.update)


def _print_plans(plans: list[ControlPlan], *, as_json: bool) -> None:
    from sluice.launching.job_output import json_value

    if as_json:
        typer.echo(json.dumps({"dry_run": True, "plans": [json_value(plan) for plan in plans]}, indent=2))
        return
    for plan in plans:
        _print_steps(plan)
    typer.echo("Nothing was changed: this was a dry run.")


def _print_steps(plan: ControlPlan, *, err: bool = False) -> None:
    typer.echo(f"{plan.verb} {plan.stream}:", err=err)
    for number, step in enumerate(plan.steps, start=1):
        typer.echo(f"  {number}. {step.sentence}", err=err)
        if step.command:
            typer.echo(f"     {shlex.join(step.command)}", err=err)


def _require_consent(plan: ControlPlan) -> None:
    """Show a plan on stderr and ask about it; without a terminal nobody can answer.

    Raises
    ------
    UsageError: when there is no terminal.
    UnhealthyError: when the answer is no.
    """
    from sluice.errors import UnhealthyError, UsageError

    _print_steps(plan, err=True)
    if not sys.stdin.isatty():
        raise UsageError(
            f"`{plan.verb}` asks before it does this, and there is no terminal to answer on; nothing was changed.",
            next_step="See the plan with `--dry-run`, and give `--yes`.",
        )
    if not typer.confirm("Do this?", err=True):
        raise UnhealthyError("Nothing was changed.")


def _print_run(verb: str, stream: str, run: RunObservation | None) -> None:
    from sluice.launching.job_output import json_value

    document = {"verb": verb, "stream": stream, "run": None if run is None else json_value(run)}
    typer.echo(json.dumps(document, indent=2))


def _run_of(ledger: Ledger, name: str, run_id: str | None) -> RunObservation:
    from sluice.errors import UsageError
    from sluice.ledger.runs import recent_runs

    runs = recent_runs(ledger, name, limit=1 if run_id is None else 1000)
    for run in runs:
        if run_id is None or run.run_id.startswith(run_id):
            return run
    which = "" if run_id is None else f" that begins with {run_id}"
    raise UsageError(f"Stream {name} has no run{which}.", next_step=f"See its runs with `sluice stream show {name}`.")


def _log_of(run: RunObservation) -> Path:
    from sluice.errors import UsageError

    if run.log_file is None:
        raise UsageError(
            f"Run {run.run_id} has no log of its own.",
            next_step=f"It was launched by {run.launched_by}: what it wrote is in that log.",
        )
    if not run.log_file.exists():
        host = run.process.host if run.process is not None else "another host"
        raise UsageError(f"{run.log_file} is not on this host.", next_step=f"Look on {host}.")
    return run.log_file


def _follow(ledger: Ledger, run: RunObservation, log: TextIO) -> Iterator[str]:
    """What is written to a log from now on, until the run has ended."""
    from sluice.ledger.runs import find_run

    is_live, ask_at = True, 0.0
    while is_live:
        if time.monotonic() >= ask_at:
            is_live, ask_at = find_run(ledger, run.run_id).is_live, time.monotonic() + _LEDGER_SECONDS
        if os.fstat(log.fileno()).st_size < log.tell():
            log.seek(0)  # it was full and has been emptied
        if text := log.read():
            yield text
        else:
            time.sleep(_FOLLOW_SECONDS)
    yield log.read()
