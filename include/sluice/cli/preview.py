"""`sluice preview`: the outputs of a stream's transformation for a few rows, before the stream is started."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from sluice.cli.terminal import AsJson, no_answer
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.spark_reports import PreviewedOutput, PreviewObservation
from sluice.launching.spark_submit import PreviewStream, run_in_foreground
from sluice.settings import load_settings

app = typer.Typer(add_completion=False)


@app.command()
def preview(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    rows: Annotated[int, typer.Option(min=1, max=1000, help="How many rows of each output are shown.")] = 10,
    sample: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many rows of each input are read.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Apply a stream's transformation to a few rows of its inputs. Nothing is written, no checkpoint is made."""

    settings = load_settings()
    load_declarations(settings.pipelines).stream(stream)  # a broken declaration is reported before Spark is started
    folder = str(settings.pipelines.resolve())
    command = PreviewStream(folder=folder, stream=stream, sample=str(sample), rows=str(rows))
    ended = run_in_foreground(command, settings)
    answers = [line for line in ended.output.splitlines() if line.startswith('{"stream"')]
    if not answers:
        raise no_answer(ended, about=stream)
    if as_json:
        typer.echo(answers[-1])
    else:
        _print(TypeAdapter(PreviewObservation).validate_json(answers[-1]))


def _print(seen: PreviewObservation) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    for given in seen.inputs:
        typer.echo(f"{given.name}: {given.kind}, {'static' if given.rows is None else f'{given.rows} rows read'}")
    for output in seen.outputs:
        typer.echo(f"\n{output.name}: {output.rows} rows")
        if output.first:
            console.print(_table(output))
    if seen.refused:
        typer.echo(f"\nrefused: {sum(seen.refused.values())} rows")
        for reason, count in seen.refused.items():
            typer.echo(f"  {count}  {reason}")
    if seen.differences:
        typer.echo("\nThe stream itself differs:")
        for sentence in seen.differences:
            typer.echo(f"  {sentence}")
    typer.echo("\nNothing was written.")


def _table(output: PreviewedOutput) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in output.columns:
        table.add_column(name, overflow="fold")
    for row in output.first:
        table.add_row(*("null" if row.get(name) is None else str(row[name]) for name in output.columns))
    return table
