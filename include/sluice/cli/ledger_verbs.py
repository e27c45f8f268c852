"""`sluice ledger status | upgrade | tidy | airflow`: the ledger database, its schema, retention and owner."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from sqlalchemy import make_url

from sluice.cli.cli_context import person
from sluice.cli.terminal import AsJson, DryRun, print_dry_run_note, print_json
from sluice.launching.driver_records import remove_driver_logs
from sluice.launching.job_output import json_value
from sluice.ledger import airflow_owner, migrations, retention
from sluice.ledger.connection import open_ledger
from sluice.ledger.migrations import LedgerVersion
from sluice.ledger.runs import newest_runs
from sluice.settings import Settings, load_settings

app = typer.Typer(
    help="The ledger database: its schema, its retention, and the Airflow it belongs to.",
    no_args_is_help=True,
    add_completion=False,
)

OUTDATED_EXIT_CODE = 1


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show the version of the ledger's schema and the version that this program needs. Ends with 1 when they differ."""
    version = migrations.observe_version(_ledger_url())
    if as_json:
        print_json(_as_json(version))
    elif version.is_newer:
        typer.echo(f"The ledger has version {version.found} of a newer Sluice, with which this one may work.")
    elif version.is_current:
        typer.echo(f"The ledger has version {version.found}, as needed.")
    else:
        typer.echo(f"The ledger has {_found(version)}; needed is {version.needed}. Run `sluice ledger upgrade`.")
    if not version.is_current:
        raise typer.Exit(OUTDATED_EXIT_CODE)


@app.command()
def upgrade(dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Migrate the ledger's schema to the needed version. Does nothing when it has it; safe to run concurrently."""
    version = migrations.observe_version(_ledger_url()) if dry_run else _upgraded(load_settings())
    if as_json:
        print_json({"dry_run": dry_run} | _as_json(version))
    elif version.is_current:
        typer.echo(f"The ledger has version {version.found} already.")
    elif dry_run:
        typer.echo(f"The ledger has {_found(version)} and would be migrated to version {version.needed}.")
        print_dry_run_note()
    else:
        typer.echo(f"The ledger had {_found(version)} and now has version {version.needed}.")


@app.command()
def tidy(dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Delete old batches, events, work items and logs of this host, and archive old runs. A DAG does it daily."""
    settings = load_settings()
    with open_ledger(settings.ledger_url) as ledger:
        done = retention.apply_retention(ledger, retention.retention_of(settings), dry_run=dry_run)
        newest = newest_runs(ledger)
    before = datetime.now(UTC) - timedelta(days=settings.driver_logs_kept_days)
    logs = remove_driver_logs(settings.logs, before=before, newest_runs=newest, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run} | json_value(done) | {"logs": logs})
    else:
        would = "would be " if dry_run else ""
        typer.echo(
            f"{done.batches} batches, {done.events} events, {done.work_items} work items, {done.records} other records "
            f"and {logs} log files "
            f"{would}deleted, {done.runs} runs {would}archived."
        )


@app.command()
def airflow(
    give_to: Annotated[
        str | None, typer.Option("--give-to", metavar="ID", help="The Airflow that is to have the ledger from now on.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Show which Airflow the ledger belongs to, or give it to another one. No stream is touched."""
    with open_ledger(_ledger_url()) as ledger:
        found = airflow_owner.find_owner(ledger)
        gives = give_to is not None and not dry_run
        owner = airflow_owner.give_to_airflow(ledger, give_to, given_by=person()) if give_to and gives else found
    if as_json:
        print_json({"dry_run": dry_run, "owner": None if owner is None else json_value(owner)})
    elif owner is None:
        typer.echo("The ledger belongs to no Airflow yet; the first one that runs a task of Sluice gets it.")
    else:
        typer.echo(f"The ledger belongs to Airflow {owner.airflow} since {owner.claimed_at:%Y-%m-%d %H:%M:%S %Z}.")
    if dry_run and give_to is not None and not as_json:
        typer.echo(f"It would be given to Airflow {give_to}.")
        print_dry_run_note()


def _upgraded(settings: Settings) -> LedgerVersion:
    """Migrate as the owner of the ledger, where it is another role than the one that works with it."""
    url, owner = settings.ledger_url.get_secret_value(), settings.ledger_owner_url
    of_drivers = settings.ledger_driver_url
    drivers = None if of_drivers is None else _role_of(of_drivers.get_secret_value())
    return (
        migrations.upgrade(url, drivers=drivers)
        if owner is None
        else migrations.upgrade(owner.get_secret_value(), worker=_role_of(url), drivers=drivers)
    )


def _role_of(url: str) -> str:
    return make_url(url).username or ""


def _ledger_url() -> str:
    return load_settings().ledger_url.get_secret_value()


def _found(version: LedgerVersion) -> str:
    return "no tables" if version.found is None else f"version {version.found}"


def _as_json(version: LedgerVersion) -> dict[str, str | bool | None]:
    """The version for a program; after `upgrade`, `found` is the version before it."""
    return {"found": version.found, "needed": version.needed, "was_current": version.is_current}
