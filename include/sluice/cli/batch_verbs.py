"""`sluice batch list | show | release | reject | publish | abandon`: the batches of a stream."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from sluice.cli.cli_context import open_cli_context, person
from sluice.cli.terminal import AsJson, DryRun, StreamName, Yes, console, may_act, print_done, print_json
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.operations import OperationVerb
from sluice.publication.batch_rejection import plan_rejection
from sluice.publication.batch_rejection import reject as reject_batch
from sluice.publication.batch_views import BatchView, observe_batches
from sluice.publication.held_decisions import broken_samples, decide, holds_batch, plan_decision
from sluice.publication.settle_output import SettlementVerb, abandon_output, plan_settlement, publish_output
from sluice.tables.catalog import open_catalog

app = typer.Typer(
    help="List, show, release and reject batches of a stream; settle those of former outputs.",
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
def release(
    stream: StreamName,
    number: Number,
    without_failing: Annotated[
        bool, typer.Option("--without-failing", help="Let the rows that break the rule go to the quarantine.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Publish a batch that a rule holds, although it breaks the rule. Those behind it follow in order.

    The plan is shown, and you are asked to confirm it. A run of the stream carries it out.
    """
    verb = OperationVerb.SEPARATE_BATCH if without_failing else OperationVerb.RELEASE_BATCH
    _decide(stream, number, verb, dry_run=dry_run, yes=yes, as_json=as_json)


def _decide(stream: str, number: int, verb: OperationVerb, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    with open_cli_context() as ctx:
        loaded = ctx.declarations.stream(stream)
        plan = plan_decision(ctx.ledger, loaded, verb, number=number)
        shown = plan.followed_by(*broken_samples(ctx.declarations, stream, plan.seen))
        if not may_act(lambda: [shown], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        decide(ctx.ledger, plan, requested_by=person())
    print_done(verb, plan.as_json()["evidence"], plan.steps[1].sentence, as_json=as_json)


@app.command()
def reject(
    stream: StreamName, number: Number, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Discard a batch that a rule holds, or the next staged batch of a stopped stream. Its rows are never published.

    The plan is shown, and you are asked to confirm it. When the command is interrupted, type it again: it completes the
    rejection. So does the next start of the stream.
    """
    with open_cli_context() as ctx:
        is_held = holds_batch(ctx.ledger, stream, number)
    if is_held:
        _decide(stream, number, OperationVerb.REJECT_BATCH, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    with open_cli_context() as ctx:
        declaration, catalog = ctx.declarations.stream(stream).declaration, open_catalog(ctx.settings)
        plan = plan_rejection(catalog, ctx.ledger, declaration, number=number)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        done = reject_batch(catalog, ctx.ledger, declaration, number=number, requested_by=person(), planned=plan.digest)
    print_done(
        plan.verb, plan.as_json()["evidence"] | {"found": done.state}, done.sentence(is_done=True), as_json=as_json
    )


@app.command()
def publish(
    stream: StreamName, output: OutputName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Make visible what is staged for an output that a stopped stream no longer declares, as it was staged.

    The plan is shown, and you are asked to confirm it.
    """
    _settle(stream, output, OperationVerb.PUBLISH_OUTPUT, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def abandon(
    stream: StreamName, output: OutputName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Discard what is staged for an output that a stopped stream no longer declares. Its rows are never published.

    The plan is shown, and you are asked to confirm it.
    """
    _settle(stream, output, OperationVerb.ABANDON_OUTPUT, dry_run=dry_run, yes=yes, as_json=as_json)


def _settle(stream: str, output: str, verb: SettlementVerb, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    act = publish_output if verb is OperationVerb.PUBLISH_OUTPUT else abandon_output
    with open_cli_context() as ctx:
        declaration, catalog = ctx.declarations.stream(stream).declaration, open_catalog(ctx.settings)
        plan = plan_settlement(catalog, ctx.ledger, declaration, output=output, verb=verb)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        done = act(catalog, ctx.ledger, declaration, output=output, requested_by=person(), planned=plan.digest)
    print_done(verb, done.plan().as_json()["evidence"], done.sentence(), as_json=as_json)


def _observe(stream: str, *, limit: int) -> tuple[BatchView, ...]:
    with open_cli_context() as ctx:
        declaration = ctx.declarations.stream(stream).declaration
        return observe_batches(open_catalog(ctx.settings), ctx.ledger, declaration, limit=limit)


def _as_json(sight: BatchView) -> dict[str, Any]:
    return {**json_value(sight), "key": str(sight.key)}
