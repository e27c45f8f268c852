"""The options that several commands share, what they print alike, and how a plan is shown and agreed to."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sluice.errors import LaunchError, UnhealthyError, UsageError
from sluice.operations import OperationPlan, OperationVerb, Stake

if TYPE_CHECKING:
    from sluice.launching.spark_submit import JobEnd

StreamName = Annotated[str, typer.Argument(help="The stream's name.")]
TableName = Annotated[str, typer.Argument(help="The table, <namespace>.<table>.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
AllowFewer = Annotated[bool, typer.Option("--allow-fewer", help="Publish also where fewer rows would come than go.")]

AllowRepeated = Annotated[
    bool, typer.Option("--allow-repeated", help="With --take-back: also where readers of the table get rows again.")
]

FEWER_ALLOWED = "Fewer rows are allowed."
"""The last step of a plan with `--allow-fewer`."""

UNHEALTHY_EXIT_CODE = 1
"""The command did its work, and what it looked at is not healthy or not as declared."""

_WIDTH_WITHOUT_TERMINAL = 200
"""A file or a pipe has no width; every row is to stay on one line there."""


def console() -> Console:
    """The console for tables: as wide as the terminal, or wide enough for a row when there is no terminal.

    It prints text as it stands: a name that a sender chose, such as `[/x]` or `:x:`, is neither markup nor an emoji.
    """
    terminal = Console(markup=False, emoji=False)
    if not terminal.is_terminal:
        terminal.width = _WIDTH_WITHOUT_TERMINAL
    return terminal


def print_json(document: object) -> None:
    """Print one JSON document, indented."""
    typer.echo(json.dumps(document, indent=2))


def print_dry_run_note() -> None:
    """Print the last line of every dry run in text."""
    typer.echo("Nothing was changed: this was a dry run.")


def no_answer(ended: JobEnd, *, about: str) -> LaunchError:
    """The error of a command whose Spark application gave no answer: in the application's own words, without its log.

    Parameters
    ----------
    ended: how the application ended.
    about: the streams that it was asked about.
    """
    why = ended.failure or f"the application ended with {ended.exit_code}, and named no reason"
    return LaunchError(f"Spark gave no answer about {about}: {why}", next_step=f"Its log is {ended.log}.")


def may_act(planned: Callable[[], Sequence[OperationPlan[Any]]], *, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Show what is planned, or have a person agree to it.

    Parameters
    ----------
    planned: makes the plans. dry_run: print them alone. yes: do not ask; what is carried out checks itself whether it
        may be. as_json: of a dry run.

    Returns
    -------
    Whether to carry them out.

    Raises
    ------
    Exit: in a dry run, when a plan is refused.
    UnpublishableError: when a plan is refused, for a reason that no batch of the stream removes.
    UsageError: when rows or a checkpoint are at stake, and there is no terminal to answer on.
    UnhealthyError: when the answer is no.
    """
    if dry_run:
        show_plans(planned(), as_json=as_json)
        return False
    if not yes:
        plans = planned()
        for plan in plans:
            if not plan.is_refused_for_now:
                plan.require_unrefused()
        _require_consent([plan for plan in plans if plan.at_stake is not Stake.NOTHING])
    return True


def show_plans(plans: Sequence[OperationPlan[Any]], *, as_json: bool) -> None:
    """Print plans that are not carried out.

    Raises
    ------
    Exit: when one is refused.
    """
    if as_json:
        print_json({"dry_run": True, "plans": [plan.as_json() for plan in plans]})
    else:
        for plan in plans:
            _print_plan(plan, err=False)
        print_dry_run_note()
    if any(plan.is_refused for plan in plans):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def print_done(verb: OperationVerb, result: Any, sentence: str, *, as_json: bool) -> None:
    """Print what was carried out. result: for a program; sentence: for a person."""
    if as_json:
        print_json({"dry_run": False, "verb": verb, "result": result})
    else:
        typer.echo(sentence)


def _require_consent(plans: Sequence[OperationPlan[Any]]) -> None:
    """Show plans on stderr and ask for consent; without any, nothing is asked."""
    if not plans:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"`{plans[0].verb}` asks before it does this, and there is no terminal to answer on; nothing was changed.",
            next_step="See the plan with `--dry-run`, and give `--yes`.",
        )
    for plan in plans:
        _print_plan(plan, err=True)
    if not typer.confirm("Do this?", err=True):
        raise UnhealthyError("Nothing was changed.")


def _print_plan(plan: OperationPlan[Any], *, err: bool) -> None:
    typer.echo(f"{plan.title}:", err=err)
    for number, step in enumerate(plan.steps, start=1):
        typer.echo(f"  {number}. {step.sentence}", err=err)
        if step.command:
            typer.echo(f"     {shlex.join(step.command)}", err=err)
    for refusal in plan.refusals:
        typer.echo(f"  {refusal.line}", err=err)
