"""`sluice quality report | suggest`: what the rules of the tables found, and rules that hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, AsJson, TableName, print_json
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.masked_tables import masked_columns_of_table
from sluice.launching.job_output import json_value
from sluice.ledger.connection import open_ledger
from sluice.ledger.quality_checks import UNSUCCESSFUL_VERDICTS, QualityObservation, newest_checks
from sluice.maintenance.maintained_tables import find_declaration
from sluice.quality.quality_pages import quality_sentence
from sluice.quality.rule_results import RuleHistory, TableReport, read_report
from sluice.quality.suggested_rules import FEWEST_ROWS, as_patch, suggest_rules
from sluice.settings import load_settings
from sluice.tables.catalog import open_catalog
from sluice.tables.column_facts import read_column_facts
from sluice.tables.declared_tables import require_table

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def quality() -> None:
    """The results of table checks."""


@app.command()
def suggest(
    table: TableName,
    sample: Annotated[int, typer.Option("--sample", min=1, max=1_000_000, help="How many rows are sampled.")] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Suggest rules that the rows of a table meet now, as a patch of its declaration with the evidence beside each."""
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    declared = find_declaration(declarations, table)
    facts = read_column_facts(require_table(open_catalog(settings), table), sample_rows=sample)
    rules = suggest_rules(declared, facts, masked=masked_columns_of_table(declarations, table))
    if as_json:
        print_json({"table": table, "rules": [json_value(rule) for rule in rules]})
    elif rules:
        typer.echo(as_patch(table, rules))
    else:
        typer.echo(f"{table}: nothing to suggest; a table needs {FEWEST_ROWS} rows, and what is declared is left out.")


@app.command()
def report(
    table: Annotated[str | None, typer.Argument(help="The table; all that were checked when not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show each rule of a table with what it found over time, or the newest result of every table; end with 1 when a
    rule does not hold."""
    settings = load_settings()
    with open_ledger(settings.ledger_url) as ledger:
        if table is None:
            found: TableReport | Sequence[QualityObservation] = newest_checks(ledger)
        else:
            declarations = load_declarations(settings.pipelines)
            found = read_report(ledger, declarations, find_declaration(declarations, table))
    checks = found.checks[:1] if isinstance(found, TableReport) else found
    if as_json:
        of_all = {"checks": [json_value(check) for check in checks]}
        print_json(json_value(found) if isinstance(found, TableReport) else of_all)
    else:
        lines = list(_lines_of(found)) if isinstance(found, TableReport) else list(_lines_of_all(checks))
        typer.echo("\n".join(lines))
    if any(check.verdict in UNSUCCESSFUL_VERDICTS for check in checks):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _lines_of_all(checks: Sequence[QualityObservation]) -> Iterator[str]:
    if not checks:
        yield "No table: no check has been recorded. The DAG data_quality makes them."
    for check in checks:
        yield f"{check.table}: {check.verdict}, {check.checked_at:%Y-%m-%d %H:%M:%S} UTC"
        yield f"  {quality_sentence(check)}"


def _lines_of(found: TableReport) -> Iterator[str]:
    newest = found.newest
    when = "not checked yet" if newest is None else f"{newest.verdict}, {newest.checked_at:%Y-%m-%d %H:%M:%S} UTC"
    yield f"{found.table}: {when}, {found.holding} of {len(found.rules)} rules hold, owner {found.owner}"
    if newest is not None and newest.snapshot_committed_at is not None:
        committed = f"{newest.snapshot_committed_at:%Y-%m-%d %H:%M:%S} UTC"
        yield f"  {newest.rows:,} rows of snapshot {newest.snapshot_id}, committed {committed}"
    if not found.rules:
        yield "  no rules: its declaration has no `quality`, so nothing is checked"
    for rule in found.rules:
        yield f"  {_mark_of(rule)} {rule.rule}{_history_of(rule)}"


def _mark_of(rule: RuleHistory) -> str:
    if rule.newest is None:
        return "○"
    return {True: "✓", False: "●", None: "▲"}[rule.newest.success]


def _history_of(rule: RuleHistory) -> str:
    if rule.newest is None:
        return ": not checked yet"
    since = f", since {rule.broken_since:%Y-%m-%d %H:%M:%S} UTC" if rule.broken_since is not None else ""
    times = f" (broken in {rule.broken} of {len(rule.results)} {rule.unit}{since})" if rule.broken else ""
    return f": {rule.newest.found}{times}"
