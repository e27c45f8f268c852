"""Shows the plan of what a person does to a stream or a table, and asks for consent where rows or a checkpoint are at
stake."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, print_dry_run_note, print_json
from sluice.errors import UnhealthyError, UsageError
from sluice.operations import OperationPlan, OperationVerb, Stake


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
