"""`sluice ledger`: the schema of the ledger."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sluice.ledger.migrations import LedgerVersion

ledger_app = typer.Typer(name="ledger", help="The database that remembers.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
OUTDATED_EXIT_CODE = 1


@ledger_app.command()
def status(as_json: AsJson = False) -> None:
    """The version of the ledger's schema, and the one this program needs. Ends with 1 when they differ."""
    from sluice.ledger.migrations import observe_version

    version = observe_version(_ledger_url())
    if as_json:
        typer.echo(json.dumps(_as_json(version), indent=2))
    elif version.is_current:
        typer.echo(f"The ledger has version {version.found}, as needed.")
    else:
        typer.echo(f"The ledger has {_found(version)}; needed is {version.needed}. Run `sluice ledger upgrade`.")
    if not version.is_current:
        raise typer.Exit(OUTDATED_EXIT_CODE)


@ledger_app.command()
def upgrade(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring the ledger's schema up to date. Quick when there is nothing to do; safe when many ask at once."""
    from sluice.ledger import migrations

    version = migrations.observe_version(_ledger_url()) if dry_run else migrations.upgrade(_ledger_url())
    if as_json:
        typer.echo(json.dumps({"dry_run": dry_run} | _as_json(version), indent=2))
    elif version.is_current:
        typer.echo(f"The ledger has version {version.found} already.")
    elif dry_run:
        typer.echo(f"The ledger has {_found(version)} and would be brought to {version.needed}.")
        typer.echo("Nothing was changed: this was a dry run.")
    else:
        typer.echo(f"The ledger had {_found(version)} and now has version {version.needed}.")


@ledger_app.command()
def tidy(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget batches and archive runs that are older than the settings say. The DAG ledger_upkeep does it daily."""
    from sluice.ledger.connection import open_ledger
    from sluice.ledger.retention import apply_retention, retention_of
    from sluice.settings import load_settings

    settings = load_settings()
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        done = apply_retention(ledger, retention_of(settings), dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps({"dry_run": dry_run, "batches": done.batches, "runs": done.runs}, indent=2))
    else:
        would = "would be " if dry_run else ""
        typer.echo(f"{done.batches} batches {would}forgotten, {done.runs} runs {would}archived.")


def _ledger_url() -> str:
    from sluice.settings import load_settings

    return load_settings().ledger_url.get_secret_value()


def _found(version: LedgerVersion) -> str:
    return "no tables" if version.found is None else f"version {version.found}"


def _as_json(version: LedgerVersion) -> dict[str, str | bool | None]:
    """For `upgrade`, `found` is what was there before."""
    return {"found": version.found, "needed": version.needed, "was_current": version.is_current}
