"""`sluice stack`: start, stop and look at the embedded local services."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.errors import UsageError

if TYPE_CHECKING:
    from sluice.stack.display import Display
    from sluice.stack.orchestration import UpReport
    from sluice.stack.stack_status import ServiceStatus, StackStatus

stack_app = typer.Typer(
    name="stack", help="The local services: PostgreSQL, SeaweedFS, Kafka and Airflow.", no_args_is_help=True
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
_NOTHING_CHANGED = "Nothing was changed: this was a dry run."

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@stack_app.command()
def up(
    services: Annotated[
        str, typer.Option(help="Only these services and what they need, separated by commas; all when not given.")
    ] = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Start the stack, or what is missing of it; done when every service has given a real answer."""
    from sluice.stack.orchestration import up as start

    names = [name.strip() for name in services.split(",") if name.strip()] or None
    if dry_run:
        _print_planned_up(names, as_json=as_json)
        return
    with _display(is_silent=as_json) as display:
        report = start(services=names, display=display)
    if as_json:
        _print_json(asdict(report))
    else:
        _print_up(report)


def _print_planned_up(services: list[str] | None, *, as_json: bool) -> None:
    from sluice.stack.orchestration import plan_up

    steps = plan_up(services=services)
    if as_json:
        _print_json({"dry_run": True, "steps": [asdict(step) for step in steps]})
        return
    for step in steps:
        typer.echo(f"{step.title}: {step.action}")
    typer.echo(_NOTHING_CHANGED)


def _display(*, is_silent: bool) -> AbstractContextManager[Display]:
    from rich.console import Console

    from sluice.stack.display import LiveDisplay, PlainDisplay, SilentDisplay

    console = Console(stderr=True)
    if is_silent:
        return nullcontext(SilentDisplay())
    return LiveDisplay(console) if console.is_terminal else nullcontext(PlainDisplay(console))


def _print_up(report: UpReport) -> None:
    from sluice.stack.credentials import AIRFLOW_USER
    from sluice.stack.folder import stack_folder

    typer.echo(f"The stack is up ({report.seconds:.1f} s). Stop it with `sluice stack down`.")
    if report.airflow_url:
        where = stack_folder().data / "airflow" / "passwords.json"
        typer.echo(f"Airflow: {report.airflow_url}, user {AIRFLOW_USER}, password in {where}")


@stack_app.command()
def down(dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """End every process of the stack, drivers and workers included, and free its ports. The data stays."""
    from sluice.stack.stopping import down as stop

    if dry_run:
        _print_planned_down(as_json=as_json)
        return
    with _at_work("Stopping the stack", is_silent=as_json):
        report = stop()
    if as_json:
        _print_json(asdict(report))
    elif report.ended_processes:
        typer.echo(f"The stack is down: {report.ended_processes} processes have ended.")
    else:
        typer.echo("The stack was down already.")


def _print_planned_down(*, as_json: bool) -> None:
    from sluice.stack.stopping import plan_down

    processes = plan_down()
    if as_json:
        _print_json({"dry_run": True, "processes": [{"pid": p.pid, "name": p.name} for p in processes]})
        return
    for process in processes:
        typer.echo(f"end {process.name} (pid {process.pid})")
    typer.echo(_NOTHING_CHANGED)


def _at_work(text: str, *, is_silent: bool) -> AbstractContextManager[object]:
    """A moving line on a terminal, one plain line elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if is_silent:
        return nullcontext()
    if console.is_terminal:
        return console.status(f"{text} …")
    console.print(f"{text} …")
    return nullcontext()


@stack_app.command()
def status(as_json: AsJson = False) -> None:
    """Ask every service now; exit code 1 when one is not healthy."""
    from sluice.stack.stack_status import observe_stack

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
        raise typer.Exit(1)


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
    from rich.console import Console
    from rich.table import Table

    if not seen.services:
        typer.echo("There is no stack here yet. Start it with `sluice stack up`.")
        return
    table = Table("service", "state", "port", "pid", "since", "detail", box=None)
    for service in seen.services:
        state = "healthy" if service.is_healthy else "unhealthy" if service.is_running else "stopped"
        since = f"{service.since.astimezone():%H:%M:%S}" if service.since else ""
        table.add_row(service.name, state, str(service.port or ""), str(service.pid or ""), since, service.detail)
    Console().print(table)
    typer.echo(f"{seen.processes} processes belong to the stack.")


@stack_app.command()
def logs(
    service: Annotated[str, typer.Argument(help="The service's name, as `status` shows it.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of its last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what it writes, until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the last lines of a service's log."""
    from sluice.stack.folder import stack_folder
    from sluice.stack.logs import follow as follow_log
    from sluice.stack.logs import last_lines

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


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, default=str))
