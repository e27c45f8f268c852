"""`sluice quality report`: the results of table checks."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, AsJson, print_json
from sluice.launching.job_output import json_value
from sluice.ledger.connection import open_ledger
from sluice.ledger.quality_checks import UNSUCCESSFUL_VERDICTS, QualityObservation, newest_checks
from sluice.quality.quality_pages import QualityPages, quality_sentence
from sluice.settings import load_settings

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def quality() -> None:
    """The results of table checks."""


@app.command()
def report(
    table: Annotated[str | None, typer.Argument(help="The table; all that were checked when not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest result of every table and where its page is; end with 1 when an expectation does not hold."""
    settings = load_settings()
    with open_ledger(settings.ledger_url) as ledger:
        checks = [check for check in newest_checks(ledger) if table is None or check.table == table]
    pages = QualityPages(root=settings.reports)
    if as_json:
        print_json({"index": str(pages.index), "checks": [json_value(check) for check in checks]})
    elif not checks:
        typer.echo(f"{table or 'No table'}: no check has been recorded{' yet' if table else ''}")
    else:
        _print(checks)
        typer.echo(f"All tables: {pages.index}")
    if any(check.verdict in UNSUCCESSFUL_VERDICTS for check in checks):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _print(checks: list[QualityObservation]) -> None:
    for check in checks:
        typer.echo(f"{check.table}: {check.verdict}, {check.checked_at:%Y-%m-%d %H:%M:%S} UTC")
        typer.echo(f"  {quality_sentence(check)}")
        typer.echo(f"  {check.report}")
