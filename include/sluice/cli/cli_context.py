"""What commands work with, composed from the settings, and how they have a piece of work done by the queue."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer

from sluice.cli.terminal import UNHEALTHY_EXIT_CODE
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import ERROR_CLASSES, SluiceError, UnhealthyError
from sluice.launching.cluster_launcher import ClusterLauncher, cluster_launcher
from sluice.launching.job_output import FAILURE_MARK, last_after
from sluice.launching.launchers import LauncherByConnection, LocalLauncher
from sluice.launching.spark_submit import DEFAULT_CONNECTION, connection_in, driver_request
from sluice.launching.submission import submit_by_program
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.runs import newest_run
from sluice.ledger.work_items import ask
from sluice.ledger.work_values import WorkObservation, WorkState
from sluice.settings import Settings, load_settings
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.supervisor import Supervisor
from sluice.work.requests import WorkRequest
from sluice.work.start_application import WorkQueue, asked_for, await_item, profile_for


@dataclass(frozen=True, slots=True, kw_only=True)
class CliContext:
    """The settings, the declarations, the ledger and the launcher of this deployment."""

    settings: Settings
    declarations: Declarations
    ledger: Ledger
    launcher: LauncherByConnection

    def heads(self) -> SourceHeads:
        """The observer of the sources' newest positions."""
        return SourceHeads(self.settings)

    def is_known_by_ledger_only(self, name: str) -> bool:
        """Whether a stream ran and has no valid declaration: its file was deleted, renamed, or is broken."""
        return name not in self.declarations.streams and newest_run(self.ledger, name) is not None

    def supervisor(self) -> Supervisor:
        """The supervisor; it records the person who runs the command as the one who launched a run.

        Raises
        ------
        SettingsError: when the Spark connection cannot be read.
        """
        connections = partial(connection_in, os.environ)
        connections(DEFAULT_CONNECTION)
        return Supervisor(
            ledger=self.ledger,
            launcher=self.launcher,
            request_for=partial(driver_request, settings=self.settings, connections=connections, ledger=self.ledger),
            launched_by=person(),
        )

    def work_queue(self) -> WorkQueue:
        """The queue of bounded work; it records the person who runs the command as the one who asks."""
        return WorkQueue(
            settings=self.settings,
            ledger=self.ledger,
            connections=partial(connection_in, os.environ),
            launcher=self.launcher,
            asked_by=person(),
        )


@contextmanager
def open_cli_context() -> Iterator[CliContext]:
    """Open the context of this deployment, and close the ledger when the block ends.

    Raises
    ------
    SettingsError: when the environment does not describe a deployment.
    """
    settings = load_settings()
    url = settings.ledger_url.get_secret_value()
    with open_ledger(url) as ledger:
        yield CliContext(
            settings=settings,
            declarations=load_declarations(settings.pipelines),
            ledger=ledger,
            launcher=LauncherByConnection(
                local=LocalLauncher(ledger_url=url), cluster=partial(_cluster, ledger=ledger, ledger_url=url)
            ),
        )


def _cluster(name: str, *, ledger: Ledger, ledger_url: str) -> ClusterLauncher:
    connection = connection_in(os.environ, name)
    submit = submit_by_program(connection)
    return cluster_launcher(name, connection, ledger=ledger, ledger_url=ledger_url, submit=submit)


def person() -> str:
    """The person who runs the command, as the ledger records it: `command line: <user>@<host>`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have
        user = str(os.getuid())
    return f"command line: {user}@{socket.gethostname()}"


def have_done(ctx: CliContext, request: WorkRequest) -> Any:
    """Ask for a piece of work and wait for its end.

    Returns
    -------
    Its result as JSON.

    Raises
    ------
    Exit: when it failed, with the exit code of its error; its last lines are shown.
    UnhealthyError: when it was withdrawn meanwhile.
    LaunchError, SettingsError, LedgerError: when it cannot be asked for.
    """
    queue, profile = ctx.work_queue(), profile_for(request, ctx.settings.pipelines)
    (item,) = ask(ctx.ledger, queue.item(request, profile))
    with asked_for(queue, [item]):
        seen = await_item(queue, item, profile, on_line=show_line)
    return result_of(seen, f"{request.kind} of {request.subject}")


def result_of(seen: WorkObservation, what: str) -> Any:
    """The result of an item that has ended.

    Parameters
    ----------
    what: the item, for a message.

    Raises
    ------
    Exit, UnhealthyError: as `have_done` raises them.
    """
    if seen.state is WorkState.WITHDRAWN:
        raise UnhealthyError(
            f"{what} was withdrawn: the same user has asked for the same meanwhile, or a person has withdrawn it.",
            next_step="Wait for the other command; if there is none, run this one again.",
        )
    if seen.state is WorkState.FAILED:
        typer.echo(seen.failure or f"{what} failed.", err=True)
        raise typer.Exit(_exit_code_of(seen.failure or ""))
    return seen.result


def show_line(line: str) -> None:
    """Show a line of a log."""
    typer.echo(line, err=True)


def _exit_code_of(failure: str) -> int:
    """The exit code of the error that the last line of an item names."""
    name = (last_after(FAILURE_MARK, failure.splitlines()) or "").partition(":")[0]
    error = ERROR_CLASSES.get(name, SluiceError)
    return error.exit_code or UNHEALTHY_EXIT_CODE
