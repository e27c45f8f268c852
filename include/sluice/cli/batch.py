"""`sluice batch list | show | reject`: what became of a stream's batches, and the one that stands in the way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sluice.publication.batch_commands import BatchSight, Rejection

batch_app = typer.Typer(name="batch", help="See and reject batches of a stream.", no_args_is_help=True)

StreamName = Annotated[str, typer.Argument(help="The stream's name.")]
Number = Annotated[int, typer.Argument(min=0, help="The batch's number, of the present generation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
_MOST = 1_000_000


@batch_app.command("list")
def list_batches(
    stream: StreamName,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The most batches of the ledger.")] = 20,
    as_json: AsJson = False,
) -> None:
    """The batches that wait staged, and the newest ones of the ledger, the newest first."""
    from rich.table import Table

    from sluice.cli.stream_tables import console

    sights = _observe(stream, limit=limit)
    if as_json:
        typer.echo(json.dumps({"stream": stream, "batches": [_as_json(sight) for sight in sights]}, indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("batch", "state", "rows", "what follows"):
        table.add_column(heading)
    for sight in sights:
        rows = ", ".join(f"{count:,} {output}" for output, count in sight.rows.items())
        table.add_row(f"{sight.key.generation}:{sight.key.batch}", sight.state, rows, sight.explanation)
    console().print(table)


@batch_app.command()
def show(stream: StreamName, number: Number, as_json: AsJson = False) -> None:
    """Everything about one batch."""
    from sluice.errors import UsageError

    found = [sight for sight in _observe(stream, limit=_MOST) if sight.key.batch == number]
    if not found:
        raise UsageError(f"Neither the ledger nor a staging table knows batch {number} of {stream}.")
    newest = max(found, key=lambda sight: sight.key.generation)
    document = _as_json(newest)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    for name, value in document.items():
        typer.echo(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")


@batch_app.command()
def reject(
    stream: StreamName,
    number: Number,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Never publish the next staged batch of a stopped stream: its marks move past it, and the next one is the next."""
    from sluice.cli.cli_context import open_workplace
    from sluice.publication.batch_commands import plan_rejection
    from sluice.publication.batch_commands import reject as reject_batch
    from sluice.tables.catalog import open_catalog

    with open_workplace() as here:
        declaration = here.declarations.stream(stream).declaration
        act = plan_rejection if dry_run else reject_batch
        rejection = act(open_catalog(here.settings), here.ledger, declaration, number=number)
    _print_rejection(rejection, dry_run=dry_run, as_json=as_json)


def _observe(stream: str, *, limit: int) -> tuple[BatchSight, ...]:
    from sluice.cli.cli_context import open_workplace
    from sluice.publication.batch_commands import observe_batches
    from sluice.tables.catalog import open_catalog

    with open_workplace() as here:
        declaration = here.declarations.stream(stream).declaration
        return observe_batches(open_catalog(here.settings), here.ledger, declaration, limit=limit)


def _print_rejection(rejection: Rejection, *, dry_run: bool, as_json: bool) -> None:
    from sluice.launching.job_output import json_value

    if as_json:
        document = {"verb": "reject", "dry_run": dry_run, **json_value(rejection), "key": str(rejection.key)}
        typer.echo(json.dumps(document, indent=2))
        return
    rows = ", ".join(f"{count:,} rows of {output}" for output, count in rejection.rows.items())
    verb = "would be rejected" if dry_run else "is rejected"
    typer.echo(f"Batch {rejection.key} {verb}: {rows} never become visible.")


def _as_json(sight: BatchSight) -> dict[str, Any]:
    from sluice.launching.job_output import json_value

    return {**json_value(sight), "key": str(sight.key)}
