"""What starts, stops, restarts and resets a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console

from sluice.cli.cli_context import CliContext, open_cli_context, person
from sluice.cli.terminal import (
    UNHEALTHY_EXIT_CODE,
    AsJson,
    DryRun,
    StreamName,
    Yes,
    may_act,
    print_done,
    print_json,
    show_plans,
)
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import newest_runs
from sluice.ledger.stream_records import read_stream
from sluice.supervision import control_plans, stream_commands, undeclared_streams
from sluice.supervision.stream_commands import restart_each, started_before
from sluice.supervision.stream_reset import plan_reset, reset_stream
from sluice.supervision.supervisor import SupervisionResult


def start(name: StreamName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Set a stream's desired state to running, reset its failure count, and start its driver when none runs."""
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        if dry_run:
            plan = control_plans.plan_start(ctx.supervisor(), stream)
            show_plans([control_plans.with_beginning(plan, ctx.ledger, stream, ctx.settings)], as_json=as_json)
            return
        started = stream_commands.start_stream(ctx.supervisor(), stream, requested_by=person())
        _print_start("start", ctx, stream, started, as_json=as_json)


def stop(name: StreamName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Stop a stream after its current batch, and wait for it. It stays stopped until it is started again.

    A run whose declaration was deleted, renamed or is broken is stopped by its name as well.
    """
    with open_cli_context() as ctx:
        stream = None if ctx.is_known_by_ledger_only(name) else ctx.declarations.stream(name)
        if dry_run:
            mode = None if stream is None else stream.declaration.mode
            show_plans([control_plans.plan_stop(ctx.supervisor(), name, mode=mode)], as_json=as_json)
            return
        ended = _stop_known(ctx, name) if stream is None else _stop(ctx, stream)
    if as_json:
        _print_run("stop", name, ended)
    elif ended is None:
        typer.echo(f"{name} is stopped; it never ran.")
    else:
        typer.echo(f"{name} is stopped. Its newest run {ended.run_id} ended: {ended.reason}.")


def restart(
    name: Annotated[str | None, typer.Argument(help="The stream's name.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="All whose driver was started by a Sluice before this version."),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="How many of them are restarted at a time.")] = 1,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Stop a stream between two batches and start it again with its current declaration.

    After an upgrade, `--older-than VERSION` restarts the streams whose drivers still have older code, one after the
    other or `--at-once` so many.
    """
    with open_cli_context() as ctx:
        if (name is None) is (older_than is None):
            raise UsageError("Name a stream to restart, or give --older-than VERSION, and not both.")
        if older_than is not None:
            _restart_older(ctx, older_than, at_once=at_once, dry_run=dry_run, as_json=as_json)
            return
        stream = ctx.declarations.stream(str(name))
        if dry_run:
            show_plans([control_plans.plan_restart(ctx.supervisor(), stream)], as_json=as_json)
            return
        _print_start("restart", ctx, stream, _restart(ctx, stream), as_json=as_json)


def reset(name: StreamName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Abandon a stopped stream's checkpoint: the next start rereads from the declared beginning.

    The old checkpoint is kept, and published rows stay published. The plan is shown, and you are asked to confirm it.
    """
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        plan = plan_reset(ctx.ledger, stream, ctx.settings, only_shows=dry_run)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        opened = reset_stream(ctx.ledger, stream, ctx.settings, planned=plan.digest, asked_by=person())
    sentence = (
        f"Generation {opened.generation} of {name} is open: `sluice stream start {name}` reads from the beginning."
    )
    print_done(plan.verb, json_value(opened), sentence, as_json=as_json)


def reset_breaker(name: StreamName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Reset a stream's failure count, so that it is restarted at once. Its desired state does not change."""
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        if dry_run:
            show_plans([control_plans.plan_reset_breaker(ctx.supervisor(), stream)], as_json=as_json)
            return
        desired = stream_commands.reset_breaker(ctx.supervisor(), stream, requested_by=person())
    if as_json:
        print_json({"verb": "reset-breaker", "desired_state": json_value(desired)})
    else:
        typer.echo(f"The failure count of {name} is reset. It should be {desired.effective_state}.")


def _stop(ctx: CliContext, stream: LoadedStream) -> RunObservation | None:
    """Stop the stream, and show on stderr what is waited for."""
    with Console(stderr=True).status(f"{stream.name} is asked to stop") as spinner:
        return stream_commands.stop_stream(ctx.supervisor(), stream, requested_by=person(), on_look=spinner.update)


def _stop_known(ctx: CliContext, name: str) -> RunObservation | None:
    """Stop a stream that only the ledger knows."""
    with Console(stderr=True).status(f"{name} is asked to stop"):
        return undeclared_streams.stop_known_run(ctx.supervisor(), name, requested_by=person())


def _restart(ctx: CliContext, stream: LoadedStream) -> SupervisionResult | None:
    """Restart the stream, and show on stderr what is waited for."""
    with Console(stderr=True).status(f"{stream.name} is asked to end its run") as spinner:
        return stream_commands.restart_stream(ctx.supervisor(), stream, requested_by=person(), on_look=spinner.update)


def _restart_older(ctx: CliContext, version: str, *, at_once: int, dry_run: bool, as_json: bool) -> None:
    """Restart the streams whose drivers have older code. Ends with 1 when one could not be restarted."""
    streams = started_before(version, ctx.declarations.streams.values(), newest_runs(ctx.ledger))
    if dry_run:
        show_plans([control_plans.plan_restart(ctx.supervisor(), stream) for stream in streams], as_json=as_json)
        return
    with Console(stderr=True).status(f"{len(streams)} streams are restarted") as spinner:
        done = restart_each(ctx.supervisor(), streams, at_once=at_once, requested_by=person(), on_look=spinner.update)
    failed = {name: str(result) for name, result in done.items() if isinstance(result, Exception)}
    if as_json:
        print_json({"verb": "restart", "restarted": sorted(set(done) - set(failed)), "failed": failed})
    else:
        typer.echo(f"{len(done) - len(failed)} of {len(done)} streams are restarted.")
        for name, why in failed.items():
            typer.echo(f"{name} is not: {why}", err=True)
    if failed:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _print_start(
    verb: str, ctx: CliContext, stream: LoadedStream, started: SupervisionResult | None, *, as_json: bool
) -> None:
    if as_json:
        _print_run(verb, stream.name, None if started is None else started.run)
    else:
        typer.echo("\n".join(lines_of_start(ctx, stream, started)))


def lines_of_start(ctx: CliContext, stream: LoadedStream, started: SupervisionResult | None) -> Iterator[str]:
    """What came of the start of a stream, for a person."""
    if started is None or started.run is None:
        note = control_plans.note_of_paused_dag(read_stream(ctx.ledger, stream.name), runs_by_schedule=True)
        yield (
            f"{stream.name} is incremental, and its desired state is running. "
            f"{note or 'Its DAG starts the next run on schedule; to run it now, trigger its DAG in Airflow.'}"
        )
        return
    yield f"{stream.name}: {started.decision.action}: {started.decision.explanation}"
    yield f"run {started.run.run_id}, log {started.run.log_file}"
    if note := control_plans.note_of_paused_dag(started.seen):
        yield note


def _print_run(verb: str, stream: str, run: RunObservation | None) -> None:
    print_json({"verb": verb, "stream": stream, "run": None if run is None else json_value(run)})
