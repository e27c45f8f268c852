"""`sluice validate --plan`: the plans that Spark makes of streams."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from sluice.declarations.spark_reports import PlanObservation, PlansObservation
from sluice.errors import LaunchError
from sluice.launching.job_command import ValidateStreams
from sluice.launching.spark_submit import run_in_foreground
from sluice.settings import load_settings


def plan_streams(folder: Path, streams: Sequence[str]) -> tuple[PlanObservation, ...]:
    """The plan of each stream, made by a Spark application of its own.

    Raises
    ------
    SettingsError: when no deployment is configured: Spark looks at the real topics and tables.
    LaunchError: when the application ended without an answer; its log is on stderr.
    """

    if not streams:
        return ()
    command = ValidateStreams(folder=str(folder.resolve()), streams=",".join(streams))
    ended = run_in_foreground(command, load_settings(), keeps_output=True)
    lines = ended.output.splitlines()
    answers = [line for line in lines if line.startswith('{"plans"')]
    sys.stderr.writelines(f"{line}\n" for line in lines if line not in answers)
    if not answers:
        raise LaunchError(
            f"Spark gave no answer about {', '.join(streams)}: it ended with {ended.exit_code}.",
            next_step="Its log is above.",
        )
    return TypeAdapter(PlansObservation).validate_json(answers[-1]).plans


def print_plans(plans: Sequence[PlanObservation]) -> None:
    """Print a tree for each plan."""
    console = Console(highlight=False)
    for plan in plans:
        console.print(_tree(plan))


def _tree(plan: PlanObservation) -> Tree:
    tree = Tree(f"[bold]{plan.stream}[/bold]  trigger {plan.trigger}, output mode {plan.output_mode}")
    inputs = tree.add("inputs")
    for given in plan.inputs:
        watermark = f", watermark {given.watermark}" if given.watermark else ""
        inputs.add(f"{given.name}: {given.kind}, {'stream' if given.is_stream else 'static'}{watermark}")
    if plan.tables_to_create:
        tree.add(f"planned as declared, not created yet: {', '.join(plan.tables_to_create)} (`sluice table create`)")
    if plan.problem is not None:
        place = f"{plan.problem.file}:{plan.problem.line}: " if plan.problem.line else ""
        tree.add(f"[red]cannot run[/red]: {escape(place + plan.problem.message)} {escape(plan.problem.next_step)}")
        return tree
    parents: list[tuple[int, Tree]] = [(-1, tree.add("operators"))]
    for depth, step in plan.operators:
        while parents[-1][0] >= depth:
            parents.pop()
        parents.append((depth, parents[-1][1].add(escape(step))))
    tree.add(f"state: {plan.state}: {', '.join(plan.stateful)}" if plan.state else "state: none")
    outputs = tree.add("outputs")
    for output in plan.outputs:
        columns = ", ".join(f"{name} {kind}" for name, kind in output.columns.items())
        outputs.add(escape(f"{output.name}: {output.kind}, {output.place} ({columns})"))
    return tree
