"""`sluice stream`: look at streams, start and stop them, read their logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.cli.cli_context import Workplace
    from sluice.declarations.loaded import LoadedStream
    from sluice.supervision.stream_status import StreamRow

stream_app = typer.Typer(name="stream", help="Streams as declared and as they run.", no_args_is_help=True)

StreamName = Annotated[str, typer.Argument(help="The stream's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
UNHEALTHY_EXIT_CODE = 1


@stream_app.command("list")
def list_streams(as_json: AsJson = False) -> None:
    """Every declared stream: how it runs, how it is, what it reads and writes."""
    from sluice.cli.cli_context import open_workplace
    from sluice.cli.stream_tables import console, state_text
    from sluice.supervision.stream_status import observe_rows

    with open_workplace() as here:
        streams = tuple(here.declarations.streams.values())
        rows = observe_rows(streams, ledger=here.ledger, launcher=here.launcher, heads=None)
        problems = [str(problem) for problem in here.declarations.problems]
    listed = [_listed(stream, row) for stream, row in zip(streams, rows, strict=True)]
    if as_json:
        typer.echo(json.dumps({"streams": listed, "problems": problems}, indent=2))
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("stream", "mode", "state", "owner", "reads", "writes"):
        table.add_column(heading, overflow="fold")
    for one, row in zip(listed, rows, strict=True):
        reads, writes = ", ".join(one["reads"]), ", ".join(one["writes"])
        table.add_row(row.stream, row.mode, state_text(row.health), one["owner"], reads, writes)
    console().print(table)
    _say_problems(problems)


@stream_app.command()
def status(
    names: Annotated[
        list[str] | None, typer.Argument(help="The streams; all that are declared when not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Streams with their batches, rates and lag. Ends with 1 when one is not as it was asked to be."""
    from sluice.cli.cli_context import open_workplace
    from sluice.cli.stream_tables import console, remarks, row_json, rows_table
    from sluice.supervision.stream_status import observe_rows

    with open_workplace() as here:
        streams = _chosen(here, names or [])
        rows = observe_rows(streams, ledger=here.ledger, launcher=here.launcher, heads=here.heads())
        problems = [] if names else [str(problem) for problem in here.declarations.problems]
    if as_json:
        typer.echo(json.dumps({"streams": [row_json(row) for row in rows], "problems": problems}, indent=2))
    else:
        console().print(rows_table(rows))
        for remark in remarks(rows):
            typer.echo(remark)
        _say_problems(problems)
    if problems or not all(row.health.is_healthy for row in rows):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


@stream_app.command()
def show(
    name: StreamName,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many runs and batches, newest first.")] = 5,
    as_json: AsJson = False,
) -> None:
    """One stream: how it is and why, where its checkpoint lies, its newest runs and batches."""
    from sluice.cli.cli_context import open_workplace
    from sluice.cli.stream_tables import row_json
    from sluice.launching.job_output import json_value
    from sluice.ledger.batches import recent_batches
    from sluice.ledger.generations import find_generation
    from sluice.ledger.runs import recent_runs
    from sluice.supervision.stream_status import observe_row

    with open_workplace() as here:
        stream = here.declarations.stream(name)
        row = observe_row(stream, ledger=here.ledger, launcher=here.launcher, heads=here.heads())
        runs = recent_runs(here.ledger, name, limit=limit)
        batches = recent_batches(here.ledger, name, limit=limit)
        generation = find_generation(here.ledger, name)
    if as_json:
        document = {
            "declaration": stream.declaration.model_dump(mode="json"),
            "file": str(stream.file),
            "generation": None if generation is None else json_value(generation),
            "runs": [json_value(run) for run in runs],
            "batches": [json_value(batch) for batch in batches],
        }
        typer.echo(json.dumps(row_json(row) | document, indent=2))
        return
    from sluice.cli.stream_tables import batches_table, console, remarks, rows_table, runs_table

    typer.echo(f"{name}: {stream.declaration.description.strip()}")
    typer.echo(f"{row.mode}, owned by {stream.declaration.owner}, declared in {stream.file}")
    typer.echo(f"{row.health.state}: {row.health.explanation}")
    if generation is not None:
        opened = f", opened by {generation.opened_by}" if generation.opened_by else ""
        typer.echo(f"generation {generation.generation}{opened}, checkpoint {generation.checkpoint}")
    for table in (rows_table([row]), runs_table(runs), batches_table(batches)):
        typer.echo("")
        console().print(table)
    for remark in remarks([row]):
        typer.echo(remark)


def _chosen(here: Workplace, names: Sequence[str]) -> tuple[LoadedStream, ...]:
    """The named streams, or all of them; raises what `Declarations.stream` raises."""
    if not names:
        return tuple(here.declarations.streams.values())
    return tuple(here.declarations.stream(name) for name in names)


def _listed(stream: LoadedStream, row: StreamRow) -> dict[str, Any]:
    sources = [declared.declared_source for declared in stream.declaration.inputs.values() if declared.is_stream]
    return {
        "stream": stream.name,
        "mode": row.mode,
        "state": row.health.state,
        "healthy": row.health.is_healthy,
        "owner": stream.declaration.owner,
        "tags": list(stream.declaration.tags),
        "reads": [getattr(declared.source, "table", declared.kind) for declared in sources],
        "writes": list(stream.declaration.tables_written),
        "file": str(stream.file),
    }


def _say_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        typer.echo(f"broken: {problem}", err=True)
