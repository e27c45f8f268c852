"""Has a piece of work done by the queue for a command: its log goes to stderr, its result to the command."""

from __future__ import annotations

from typing import Any

import typer

from sluice.cli.cli_context import CliContext
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE
from sluice.errors import ERROR_CLASSES, SluiceError, UnhealthyError
from sluice.launching.job_output import FAILURE_MARK, last_after
from sluice.ledger.work_items import ask
from sluice.ledger.work_values import WorkObservation, WorkState
from sluice.work.await_items import asked_for, await_item
from sluice.work.requests import WorkRequest
from sluice.work.start_application import profile_for


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
