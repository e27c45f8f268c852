"""`sluice batch list | show | reject | publish | abandon`: the batches of a stream."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from sluice.cli.cli_context import open_cli_context, person
from sluice.cli.command_options import AsJson, DryRun, StreamName
from sluice.cli.terminal import console, print_json
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.publication import batch_commands, batch_rejection
from sluice.publication.batch_commands import BatchView
from sluice.publication.batch_rejection import Rejection
from sluice.publication.settle_output import SettlementVerb, abandon_output, plan_settlement, publish_output
from sluice.tables.catalog import open_catalog

app = typer.Typer(
    help="List, show and reject batches of a stream; settle those of former outputs.",
    no_args_is_help=True,
    add_completion=False,
)

Number = Annotated[int, typer.Argument(min=0, help="The batch's number in the current generation.")]
OutputName = Annotated[str, typer.Argument(help="The output's name; that of rejected rows is `quarantine`.")]
_ALL_BATCHES = 1_000_000


@app.command("list")
def list_batches(
    stream: StreamName,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many batches of the ledger.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the staged batches that wait, and the newest batches of the ledger, newest first."""
    sights = _observe(stream, limit=limit)
    if as_json:
        print_json({"stream": stream, "batches": [_as_json(sight) for sight in sights]})
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("batch", "state", "rows", "what follows"):
        table.add_column(heading)
    for sight in sights:
        rows = ", ".join(f"{count:,} {output}" for output, count in sight.rows.items())
        table.add_row(f"{sight.key.generation}:{sight.key.batch}", sight.state, rows, sight.explanation)
    console().print(table)


@app.command()
def show(stream: StreamName, number: Number, as_json: AsJson = False) -> None:
    """Show everything that is known about one batch."""
    found = [sight for sight in _observe(stream, limit=_ALL_BATCHES) if sight.key.batch == number]
    if not found:
        raise UsageError(f"Neither the ledger nor a staging table knows batch {number} of {stream}.")
    newest = max(found, key=lambda sight: sight.key.generation)
    document = _as_json(newest)
    if as_json:
        print_json(document)
        return
    for name, value in document.items():
        typer.echo(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")


@app.command()
def reject(stream: StreamName, number: Number, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Discard the next staged batch of a stopped stream. Its rows are never published; the following batch is next.

    When the command is interrupted, type it again: it completes the rejection. So does the next start of the stream.
    """
    with open_cli_context() as ctx:
        declaration, catalog = ctx.declarations.stream(stream).declaration, open_catalog(ctx.settings)
        if dry_run:
            rejection = batch_rejection.plan_rejection(catalog, ctx.ledger, declaration, number=number)
        else:
            rejection = batch_rejection.reject(catalog, ctx.ledger, declaration, number=number, requested_by=person())
    _print_rejection(rejection, dry_run=dry_run, as_json=as_json)


@app.command()
def publish(stream: StreamName, output: OutputName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Make visible what is staged for an output that a stopped stream no longer declares, as it was staged."""
    _settle(stream, output, SettlementVerb.PUBLISH, dry_run=dry_run, as_json=as_json)


@app.command()
def abandon(stream: StreamName, output: OutputName, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Discard what is staged for an output that a stopped stream no longer declares. Its rows are never published."""
    _settle(stream, output, SettlementVerb.ABANDON, dry_run=dry_run, as_json=as_json)


def _settle(stream: str, output: str, verb: SettlementVerb, *, dry_run: bool, as_json: bool) -> None:
    with open_cli_context() as ctx:
        declaration = ctx.declarations.stream(stream).declaration
        catalog = open_catalog(ctx.settings)
        if dry_run:
            settled = plan_settlement(catalog, ctx.ledger, declaration, output=output, verb=verb)
        else:
            act = publish_output if verb is SettlementVerb.PUBLISH else abandon_output
            settled = act(catalog, ctx.ledger, declaration, output=output, requested_by=person())
    if as_json:
        keys = [str(key) for key in settled.batches]
        print_json({**json_value(settled), "dry_run": dry_run, "batches": keys})
        return
    done = {SettlementVerb.PUBLISH: "become visible in", SettlementVerb.ABANDON: "never become visible in"}[verb]
    typer.echo(
        f"{'Would: ' if dry_run else ''}{len(settled.batches)} batches of {stream}.{output} with {settled.rows:,} rows "
        f"{done} {settled.target or 'any table'}: {settled.batches[0]} to {settled.batches[-1]}."
    )


def _observe(stream: str, *, limit: int) -> tuple[BatchView, ...]:
    with open_cli_context() as ctx:
        declaration = ctx.declarations.stream(stream).declaration
        return batch_commands.observe_batches(open_catalog(ctx.settings), ctx.ledger, declaration, limit=limit)


def _print_rejection(rejection: Rejection, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"verb": "reject", "dry_run": dry_run, **json_value(rejection), "key": str(rejection.key)})
        return
    typer.echo(rejection.sentence(is_done=not dry_run))


def _as_json(sight: BatchView) -> dict[str, Any]:
    return {**json_value(sight), "key": str(sight.key)}
