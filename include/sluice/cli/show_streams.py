"""`sluice stream list | status | show | logs`: streams as declared and as they run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.table import Table

from sluice.cli.cli_context import CliContext, open_cli_context
from sluice.cli.event_verbs import events_table
from sluice.cli.stream_rendering import (
    batches_table,
    fields_table,
    remarks,
    row_json,
    rows_table,
    runs_table,
    schemas_table,
    state_text,
)
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, AsJson, StreamName, console, print_json
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.ledger.batch_findings import undeclared_fields
from sluice.ledger.batches import BatchObservation, recent_batches
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import EventObservation, EventSubject, recent_events
from sluice.ledger.generations import GenerationObservation, find_generation
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import find_run, newest_runs, recent_runs
from sluice.ledger.source_schemas import source_schemas
from sluice.positions.restore_copy import observe_state_copies
from sluice.quality.declaration_patches import patches_of
from sluice.supervision.orphaned_runs import find_orphaned_runs
from sluice.supervision.platform_troubles import (
    SIGNS,
    subjects_beside_streams,
    troubles_beside_streams,
)
from sluice.supervision.stream_status import StreamRow, observe_rows

_POLL_SECONDS = 0.3
_LEDGER_POLL_SECONDS = 3.0
"""The interval at which the follower of a log asks the ledger whether the run has ended."""
_SEARCHED_RUNS = 1000


def list_streams(as_json: AsJson = False) -> None:
    """List the declared streams: how each runs, its state, what it reads and writes."""
    with open_cli_context() as ctx:
        streams = tuple(ctx.declarations.streams.values())
        rows = observe_rows(streams, ledger=ctx.ledger, launcher=ctx.launcher, heads=None)
        problems = [str(problem) for problem in ctx.declarations.problems]
    listed = [_listed(stream, row) for stream, row in zip(streams, rows, strict=True)]
    if as_json:
        print_json({"streams": listed, "problems": problems})
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("stream", "mode", "state", "owner", "reads", "writes"):
        table.add_column(heading, overflow="fold")
    for one, row in zip(listed, rows, strict=True):
        reads, writes = ", ".join(one["reads"]), ", ".join(one["writes"])
        table.add_row(row.stream, row.mode, state_text(row.verdict), one["owner"], reads, writes)
    console().print(table)
    _print_problems(problems)


def status(
    names: Annotated[
        list[str] | None, typer.Argument(help="The streams; all that are declared when not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show streams with their batches, rates and lag, tables whose check failed or whose rows are unusual, inputs whose
    schema has changed, and paused DAGs of the platform. Ends with 1 when a stream is not in its desired state, or a
    check failed."""
    with open_cli_context() as ctx:
        rows = _observed(ctx, names or [])
        problems = [] if names else [str(problem) for problem in ctx.declarations.problems]
        beside = () if names else troubles_beside_streams(ctx.ledger, subjects_beside_streams(ctx.declarations))
    if as_json:
        troubles = [json_value(trouble) for trouble in beside]
        print_json({"streams": [row_json(row) for row in rows], "problems": problems, "troubles": troubles})
    else:
        console().print(rows_table(rows))
        for remark in (*remarks(rows), *(f"{one.stream}: {one.reason}: {one.explanation}" for one in beside)):
            typer.echo(remark)
        _print_problems(problems)
    has_failed_check = any(trouble.reason not in SIGNS for trouble in beside)
    if problems or has_failed_check or not all(row.verdict.is_healthy for row in rows):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def show(
    name: StreamName,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many runs, batches and events, newest first.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show one stream: its state and the reason, its checkpoint, the newest copy of its state, its newest runs, batches
    and events, the schemas that its inputs were last seen with and a patch of the declaration for what has changed, and
    the fields that its senders send and no column takes."""
    with open_cli_context() as ctx:
        stream = None if ctx.is_known_by_ledger_only(name) else ctx.declarations.stream(name)
        row = _observed(ctx, [name])[0]
        runs = recent_runs(ctx.ledger, name, limit=limit)
        batches = recent_batches(ctx.ledger, name, limit=limit)
        events = recent_events(ctx.ledger, EventSubject.STREAM, name, limit=limit)
        generation = find_generation(ctx.ledger, name)
        fields = undeclared_fields(ctx.ledger, name)
        schemas = source_schemas(ctx.ledger, name, inputs=None if stream is None else stream.declaration.inputs)
        copies, now = observe_state_copies(generation, ctx.settings.object_store), database_time(ctx.ledger)
    patches = {} if stream is None else patches_of(stream.declaration, schemas)
    if as_json:
        document = {
            "declaration": None if stream is None else stream.declaration.model_dump(mode="json"),
            "file": None if stream is None else str(stream.file),
            "generation": None if generation is None else json_value(generation),
            "state_copies": None if copies is None else copies.document(now=now),
            "runs": [json_value(run) for run in runs],
            "batches": [json_value(batch) for batch in batches],
            "events": [json_value(event) for event in events],
            "undeclared_fields": [json_value(field) for field in fields],
            "source_schemas": [json_value(one) | {"patch": patches.get(one.input, "")} for one in schemas],
        }
        print_json(row_json(row) | document)
        return
    _print_summary(stream, row, generation)
    if copies is not None:
        typer.echo(copies.sentence(newest_batch=batches[0].key.batch if batches else None))
    _print_history(row, runs, batches, events)
    for table in [schemas_table(schemas)] * bool(schemas) + [fields_table(fields)] * bool(fields):
        typer.echo("")
        console().print(table)
    for patch in patches.values():
        typer.echo(f"\n{patch}")


def _print_summary(stream: LoadedStream | None, row: StreamRow, generation: GenerationObservation | None) -> None:
    if stream is None:
        typer.echo(f"{row.stream}: without a valid declaration; its newest run is {row.mode}")
    else:
        typer.echo(f"{stream.name}: {stream.declaration.description.strip()}")
        typer.echo(f"{row.mode}, owned by {stream.declaration.owner}, declared in {stream.file}")
    typer.echo(f"{row.verdict.state}: {row.verdict.explanation}")
    if generation is not None:
        opened = f", opened by {generation.opened_by}" if generation.opened_by else ""
        typer.echo(f"generation {generation.generation}{opened}, checkpoint {generation.checkpoint}")


def _print_history(
    row: StreamRow,
    runs: Sequence[RunObservation],
    batches: Sequence[BatchObservation],
    events: Sequence[EventObservation],
) -> None:
    for table in (rows_table([row]), runs_table(runs), batches_table(batches), events_table(events, title="Events")):
        typer.echo("")
        console().print(table)
    for remark in remarks([row]):
        typer.echo(remark)


def _observed(ctx: CliContext, names: Sequence[str]) -> tuple[StreamRow, ...]:
    """The named streams in their order, or all: the declared ones, then runs that fit no declaration.

    Raises what `Declarations.stream` raises, for a name that the ledger does not know either.
    """
    declared = ctx.declarations.streams
    for name in names:
        if not ctx.is_known_by_ledger_only(name):
            ctx.declarations.stream(name)
    newest = [run for run in newest_runs(ctx.ledger) if not names or run.stream in names]
    rows = observe_rows(
        [wanted for name, wanted in declared.items() if not names or name in names],
        ledger=ctx.ledger,
        launcher=ctx.launcher,
        heads=ctx.heads(),
        orphans=find_orphaned_runs(ctx.declarations, newest),
        others=[name for name in names if name not in declared],
    )
    if not names:
        return tuple(row for row in rows if row.is_shown)
    by_name = {row.stream: row for row in rows}
    return tuple(by_name[name] for name in names)


def _listed(stream: LoadedStream, row: StreamRow) -> dict[str, Any]:
    sources = [declared.declared_source for declared in stream.declaration.inputs.values() if declared.is_stream]
    return {
        "stream": stream.name,
        "mode": row.mode,
        "state": row.verdict.state,
        "healthy": row.verdict.is_healthy,
        "owner": stream.declaration.owner,
        "tags": list(stream.declaration.tags),
        "reads": [getattr(declared.source, "table", declared.kind) for declared in sources],
        "writes": list(stream.declaration.tables_written),
        "file": str(stream.file),
    }


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        typer.echo(f"broken: {problem}", err=True)


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
