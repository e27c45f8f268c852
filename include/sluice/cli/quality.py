"""`sluice quality`: what the checks of the tables found."""

from __future__ import annotations

import json
from typing import Annotated

import typer

quality_app = typer.Typer(name="quality", help="What the checks of the tables found.", no_args_is_help=True)
UNHEALTHY_EXIT_CODE = 1


@quality_app.callback()
def quality() -> None:
    """What the checks of the tables found."""


@quality_app.command()
def report(
    table: Annotated[str | None, typer.Argument(help="The table; all that were checked when not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """The newest result of every table and where its page is; ends with 1 when an expectation does not hold."""
    from sluice.launching.job_output import json_value
    from sluice.ledger.connection import open_ledger
    from sluice.ledger.quality_history import newest_checks
    from sluice.ledger.records.quality_check import UNSUCCESSFUL_VERDICTS
    from sluice.quality.quality_pages import QualityPages, quality_sentence
    from sluice.settings import load_settings

    settings = load_settings()
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        checks = [check for check in newest_checks(ledger) if table is None or check.table == table]
    pages = QualityPages(root=settings.reports)
    if as_json:
        document = {"index": str(pages.index), "checks": [json_value(check) for check in checks]}
        typer.echo(json.dumps(document, indent=2))
    elif not checks:
        typer.echo(f"{table or 'No table'}: no check has been recorded{' yet' if table else ''}")
    else:
        for check in checks:
            typer.echo(f"{check.table}: {check.verdict}, {check.checked_at:%Y-%m-%d %H:%M:%S} UTC")
            typer.echo(f"  {quality_sentence(check)}")
            typer.echo(f"  {check.report}")
        typer.echo(f"All tables: {pages.index}")
    if any(check.verdict in UNSUCCESSFUL_VERDICTS for check in checks):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)
