"""Shows the plan of a command over a stream, and asks for consent."""

from __future__ import annotations

import shlex
import sys

import typer

from sluice.cli.terminal import print_dry_run_note, print_json
from sluice.errors import UnhealthyError, UsageError
from sluice.launching.job_output import json_value
from sluice.supervision.control_plans import ControlPlan


def print_plan(plan: ControlPlan, *, as_json: bool) -> None:
    """Print a plan that is not carried out."""
    if as_json:
        print_json({"dry_run": True, "plans": [json_value(plan)]})
        return
    print_steps(plan)
    print_dry_run_note()


def print_steps(plan: ControlPlan, *, err: bool = False) -> None:
    """Print the steps of a plan. err: to stderr."""
    typer.echo(f"{plan.verb} {plan.stream}:", err=err)
    for number, step in enumerate(plan.steps, start=1):
        typer.echo(f"  {number}. {step.sentence}", err=err)
        if step.command:
            typer.echo(f"     {shlex.join(step.command)}", err=err)


def require_consent(plan: ControlPlan) -> None:
    """Show a plan on stderr and ask for consent.

    Raises
    ------
    UsageError: when there is no terminal to answer on.
    UnhealthyError: when the answer is no.
    """
    print_steps(plan, err=True)
    if not sys.stdin.isatty():
        raise UsageError(
            f"`{plan.verb}` asks before it does this, and there is no terminal to answer on; nothing was changed.",
            next_step="See the plan with `--dry-run`, and give `--yes`.",
        )
    if not typer.confirm("Do this?", err=True):
        raise UnhealthyError("Nothing was changed.")
