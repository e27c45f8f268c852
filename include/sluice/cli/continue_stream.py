"""`sluice stream continue`: takes a stopped stream past a gap in the history of its Iceberg input."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.cli_context import open_cli_context, person
from sluice.cli.command_options import AsJson, DryRun, StreamName
from sluice.cli.plan_consent import print_plan, require_consent
from sluice.cli.terminal import print_json
from sluice.launching.job_output import json_value
from sluice.maintenance.gap_continuation import continue_stream, plan_continuation
from sluice.tables.catalog import open_catalog


def continue_past_gap(
    name: StreamName,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Never read the missing rows; continue with what is left.")
    ] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take a stopped stream past snapshots of its input that were expired before it had read them.

    Where the missing rows can be proved to be files that are still in the table, the next batch reads exactly these;
    otherwise the choices are named. The old checkpoint is kept. The plan is shown, and you are asked to confirm it.
    """
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        plan = plan_continuation(ctx.ledger, open_catalog(ctx.settings), stream, ctx.settings, leaves_out=leave_out)
        if dry_run:
            print_plan(plan, as_json=as_json)
            return
        if not yes:
            require_consent(plan)
        opened = continue_stream(ctx.ledger, stream, ctx.settings, plan, asked_by=person())
    if as_json:
        print_json({"verb": "continue", "plan": json_value(plan), "generation": json_value(opened)})
    else:
        typer.echo(f"Generation {opened.generation} of {name} is open: `sluice stream start {name}` continues.")
