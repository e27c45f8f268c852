"""`sluice quality report | suggest`: what the rules of the tables found, and rules that hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, AsJson, TableName, print_json
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import masked_columns_of_table
from sluice.launching.job_output import json_value
from sluice.ledger.connection import open_ledger
from sluice.ledger.recorded_checks import UNSUCCESSFUL_VERDICTS, QualityObservation, QualityVerdict, newest_checks
from sluice.maintenance.maintained_tables import find_declaration
from sluice.quality.check_results import quality_sentence
from sluice.quality.declaration_patches import FEWEST_ROWS, as_patch, suggest_rules
from sluice.quality.rule_results import (
    RuleHistory,
    TableReport,
    TableRules,
    judged_rules,
    read_newest_reports,
    read_report,
)
from sluice.settings import load_settings
from sluice.supervision.platform_troubles import unusual_rows
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
    loaded = declarations.table(table)
    facts = read_column_facts(require_table(open_catalog(settings), table), sample_rows=sample)
    rules = suggest_rules(
        loaded.declaration,
        facts,
        masked=masked_columns_of_table(declarations, table),
        rules=[rule.declared for rule in judged_rules(declarations).get(table, TableRules()).rules],
    )
    if as_json:
        print_json({"table": table, "rules": [json_value(rule) for rule in rules]})
    elif rules:
        typer.echo(as_patch(loaded, rules))
    else:
        typer.echo(f"{table}: nothing to suggest; a table needs {FEWEST_ROWS} rows, and what is declared is left out.")


@app.command()
def report(
    table: Annotated[str | None, typer.Argument(help="The table; all when not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show each rule of a table with what it found over time, or the newest result of every table, and whose rows are
    unusual; end with 1 when a rule does not hold."""
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    with open_ledger(settings.ledger_url) as ledger:
        unusual = unusual_rows(ledger, table)
        if table is None:
            reports = read_newest_reports(ledger, declarations)
            declared = {one.table for one in reports}
            undeclared = [check for check in newest_checks(ledger) if check.table not in declared]
        else:
            reports = (read_report(ledger, declarations, find_declaration(declarations, table)),)
            undeclared = []
    checks = sorted(
        [*undeclared, *(one.newest for one in reports if one.newest is not None)], key=lambda one: one.table
    )
    if as_json:
        of_all = {"checks": [json_value(check) for check in checks], "tables": [json_value(one) for one in reports]}
        found = of_all if table is None else json_value(reports[0])
        print_json(found | {"unusual_rows": [json_value(one) for one in unusual]})
    else:
        lines = _lines_of(reports[0]) if table is not None else _lines_of_all(reports, undeclared)
        typer.echo("\n".join((*lines, *(f"{one.stream}: {one.explanation}" for one in unusual))))
    if any(check.verdict in UNSUCCESSFUL_VERDICTS for check in checks) or any(one.broken for one in reports):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _lines_of_all(reports: Sequence[TableReport], undeclared: Sequence[QualityObservation]) -> Iterator[str]:
    if not reports and not undeclared:
        yield "No table has rules, and none was checked."
    for found in reports:
        yield _headline(found)
        if found.newest is not None and not found.newest.details:
            yield f"  {quality_sentence(found.newest)}"
        for rule in found.broken:
            yield f"  {_mark_of(rule)} {rule.rule}: {rule.newest.found if rule.newest else ''}{rule.remark('')}"
    for check in undeclared:
        yield f"{check.table}, which is not declared: {check.verdict}, {check.checked_at:%Y-%m-%d %H:%M:%S} UTC"
        yield f"  {quality_sentence(check)}"


def _headline(found: TableReport) -> str:
    """What the rules of a table found last, in one line."""
    newest = found.newest
    times = [rule.newest.at for rule in found.rules if rule.newest is not None]
    times += [newest.checked_at] if newest is not None else []
    if not times:
        return f"{found.table}: not checked yet, owner {found.owner}"
    is_failed = any(rule.newest is not None and rule.newest.success is False for rule in found.rules)
    result = QualityVerdict.FAILED if is_failed else QualityVerdict.PASSED if newest is None else newest.verdict
    unchecked = f", {found.unchecked} not checked yet" if found.unchecked else ""
    when = f"{max(times):%Y-%m-%d %H:%M:%S} UTC"
    holding = f"{found.holding} of {len(found.rules)} rules hold"
    return f"{found.table}: {result}, {when}, {holding}{unchecked}, owner {found.owner}"


def _lines_of(found: TableReport) -> Iterator[str]:
    newest = found.newest
    yield _headline(found)
    if newest is not None and newest.snapshot_committed_at is not None:
        committed = f"{newest.snapshot_committed_at:%Y-%m-%d %H:%M:%S} UTC"
        yield f"  {newest.rows:,} rows of snapshot {newest.snapshot_id}, committed {committed}"
    if not found.rules:
        yield "  no rules: neither `rules` nor `quality` is declared, so nothing is checked"
    for rule in found.rules:
        yield f"  {_mark_of(rule)} {rule.rule}{_history_of(rule)}{rule.remark(found.owner)}"


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
