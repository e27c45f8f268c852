"""`sluice stack up | down | status | logs | clean-airflow`, and the commands of `stack_access`: the local services."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sluice.cli import stack_access
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, AsJson, DryRun, print_dry_run_note
from sluice.declarations.stream_declaration import SHORT_DAGS
from sluice.errors import UsageError
from sluice.stack import orchestration, stopping
from sluice.stack.credentials import AIRFLOW_USER
from sluice.stack.environment import load_environment
from sluice.stack.folder import stack_folder
from sluice.stack.orchestration import UpReport
from sluice.stack.stack_status import (
    Display,
    LiveDisplay,
    PlainDisplay,
    ServiceStatus,
    SilentDisplay,
    StackStatus,
    follow_log,
    last_lines,
    observe_stack,
)

app = typer.Typer(
    help="The local services: PostgreSQL, SeaweedFS, Kafka and Airflow.", no_args_is_help=True, add_completion=False
)


@app.command()
def up(
    services: Annotated[
        str, typer.Option(help="Only these services and what they need, separated by commas; all when not given.")
    ] = "",
    replaces: Annotated[
        bool,
        typer.Option(
            "--declarations-from-here",
            help="Take declarations, connections and variables from this terminal and its folder, and drop all others "
            "that the stack remembers, also while it runs.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Start the services that do not run yet, and wait until every service answers.

    The stack remembers with which declarations, connections and variables it was started, and keeps those that this
    terminal does not name.
    """
    names = [name.strip() for name in services.split(",") if name.strip()] or None
    if dry_run:
        _print_planned_up(names, replaces=replaces, as_json=as_json)
        return
    with _display(is_silent=as_json) as display:
        report = orchestration.up(services=names, replaces=replaces, display=display)
    if as_json:
        _print_json(asdict(report))
    else:
        _print_up(report)


def _print_planned_up(services: list[str] | None, *, replaces: bool, as_json: bool) -> None:
    planned = orchestration.plan_up(services=services, replaces=replaces)
    if as_json:
        _print_json({"dry_run": True, **asdict(planned)})
        return
    for step in planned.steps:
        typer.echo(f"{step.title}: {step.action}")
    for sentence in planned.differences:
        typer.echo(sentence)
    typer.echo(f"Declarations: {planned.declarations}")
    print_dry_run_note()


def _display(*, is_silent: bool) -> AbstractContextManager[Display]:

    console = Console(stderr=True)
    if is_silent:
        return nullcontext(SilentDisplay())
    return LiveDisplay(console) if console.is_terminal else nullcontext(PlainDisplay(console))


def _print_up(report: UpReport) -> None:
    typer.echo(f"The stack is up ({report.seconds:.1f} s). Stop it with `sluice stack down`.")
    typer.echo(f"Declarations: {report.declarations}")
    if report.airflow_url:
        where = stack_folder().data / "airflow" / "passwords.json"
        typer.echo(f"Airflow: {report.airflow_url}, user {AIRFLOW_USER}, password in {where}")


@app.command()
def down(dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """End every process of the stack, drivers and workers included, and free its ports. The data stays."""
    if dry_run:
        _print_planned_down(as_json=as_json)
        return
    with _at_work("Stopping the stack", is_silent=as_json):
        report = stopping.down()
    if as_json:
        _print_json(asdict(report))
        return
    if report.taken_ports:
        typer.echo(f"Meanwhile other programs have taken ports that it had: {', '.join(report.taken_ports)}.", err=True)
    if report.ended_processes:
        typer.echo(f"The stack is down: {report.ended_processes} processes have ended.")
    else:
        typer.echo("The stack was down already.")


def _print_planned_down(*, as_json: bool) -> None:
    processes = stopping.plan_down()
    if as_json:
        _print_json({"dry_run": True, "processes": [{"pid": p.pid, "name": p.name} for p in processes]})
        return
    for process in processes:
        typer.echo(f"end {process.name} (pid {process.pid})")
    print_dry_run_note()


def _at_work(text: str, *, is_silent: bool) -> AbstractContextManager[object]:
    """A spinner on a terminal, one plain line elsewhere."""
    console = Console(stderr=True)
    if is_silent:
        return nullcontext()
    if console.is_terminal:
        return console.status(f"{text} …")
    console.print(f"{text} …")
    return nullcontext()


@app.command()
def status(as_json: AsJson = False) -> None:
    """Ask every service now, and end with 1 when one is not healthy."""
    seen = observe_stack()
    if as_json:
        _print_json(
            {
                "healthy": seen.is_healthy,
                "processes": seen.processes,
                "services": [_service_values(service) for service in seen.services],
            }
        )
    else:
        _print_status(seen)
    if not seen.is_healthy:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _service_values(service: ServiceStatus) -> dict[str, object]:
    return {
        "name": service.name,
        "running": service.is_running,
        "healthy": service.is_healthy,
        "pid": service.pid,
        "port": service.port,
        "since": service.since.isoformat() if service.since else None,
        "detail": service.detail,
    }


def _print_status(seen: StackStatus) -> None:
    if not seen.services:
        typer.echo("There is no stack yet. Start it with `sluice stack up`.")
        return
    table = Table("service", "state", "port", "pid", "since", "detail", box=None)
    for service in seen.services:
        state = "healthy" if service.is_healthy else "unhealthy" if service.is_running else "stopped"
        since = f"{service.since.astimezone():%H:%M:%S}" if service.since else ""
        table.add_row(service.name, state, str(service.port or ""), str(service.pid or ""), since, service.detail)
    Console(markup=False, emoji=False).print(table)
    typer.echo(f"{seen.processes} processes belong to the stack.")


@app.command()
def logs(
    service: Annotated[str, typer.Argument(help="The service's name, as `status` shows it.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of its last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also show what is appended, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the last lines of a service's log."""
    log = stack_folder().log(service)
    if not log.exists():
        known = sorted(path.stem for path in log.parent.glob("*.log"))
        raise UsageError(f"There is no log of {service!r}; there are logs of {', '.join(known) or 'nothing yet'}.")
    if as_json:
        _print_json({"service": service, "file": str(log), "lines": last_lines(log, lines)})
        return
    position = log.stat().st_size
    for line in last_lines(log, lines):
        typer.echo(line)
    if follow:
        for line in follow_log(log, position=position):
            typer.echo(line)


@app.command()
def clean_airflow(
    kept_days: Annotated[
        int, typer.Option("--kept-days", min=1, help="Runs that began within so many days stay.")
    ] = 30,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete old runs of the platform's own short DAGs from Airflow's database. No run of a stream is touched."""
    from sluice.stack.services.airflow_api_server import clean_airflow_history  # psycopg is slow to import

    folder = stack_folder()
    environment = load_environment(folder.data) if folder.environment.exists() else os.environ
    before = datetime.now(UTC) - timedelta(days=kept_days)
    report = clean_airflow_history(environment, dag_ids=SHORT_DAGS, before=before, dry_run=dry_run)
    if as_json:
        _print_json({"dry_run": dry_run, "before": before.isoformat(), "dags": SHORT_DAGS, "report": report})
        return
    typer.echo(report)
    if dry_run:
        print_dry_run_note()


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, default=str))


app.command()(stack_access.env)
app.command()(stack_access.credentials)
app.command("create-topic")(stack_access.create_topic)
app.command()(stack_access.upload)
