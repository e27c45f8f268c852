"""The final report of the demo: rows, maintenance and quality of the tables, the checks, and the next steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rich.console import Console, RenderableType
from rich.table import Table

from sluice.demo.demo_progress import StepDuration
from sluice.demo.lakehouse_copy import CheckResult
from sluice.ledger.maintenance_runs import MaintenanceObservation
from sluice.ledger.recorded_checks import QualityObservation

STOP_COMMAND = "sluice stack down"
YEAR_IS_OVER = "Every flight of 2013 has been sent. To start again, stop the stack and delete its data folder."


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBalance:
    """The rows of `bronze.flights`, split by what `silver_flights` did with them."""

    bronze: int
    silver: int
    refused: int
    late: int
    duplicate: int

    def __str__(self) -> str:
        return (
            f"{self.bronze:,} in bronze = {self.silver:,} in silver + {self.refused:,} refused + "
            f"{self.late:,} late + {self.duplicate:,} duplicate"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """One table at the end of the demo; maintenance and quality are None when the demo did not run them for it."""

    table: str
    rows: int
    maintenance: MaintenanceObservation | None
    quality: QualityObservation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereToLook:
    """Where to look next: Airflow's address, its user and the file with the password, and the quality reports."""

    airflow_url: str
    airflow_user: str
    airflow_login_file: str
    quality_reports: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The outcome of a demo.

    days: the days that were replayed; None when the whole year had been replayed before.
    held: what a rule has held, and how it was released; empty when nothing was held.
    total_seconds: from the begin of the first step to the end of the last.
    """

    days: str | None
    is_year_over: bool
    sent_records: int
    balance: RowBalance
    tables: tuple[TableReport, ...]
    checks: tuple[CheckResult, ...]
    steps: tuple[StepDuration, ...]
    total_seconds: float
    where: WhereToLook
    held: str = ""

    def as_json(self) -> dict[str, object]:
        """The report for a program."""
        return {
            "verified": all(check.is_true for check in self.checks),
            "days": self.days,
            "year_is_over": self.is_year_over,
            "sent_records": self.sent_records,
            "balance": asdict(self.balance),
            "tables": [_table_as_json(table) for table in self.tables],
            "held": self.held,
            "checks": [check.as_json() for check in self.checks],
            "steps": [asdict(step) for step in self.steps],
            "total_seconds": round(self.total_seconds, 1),
            "where": asdict(self.where),
            "stop": STOP_COMMAND,
        }


def print_report(report: DemoReport, console: Console) -> None:
    """Show the report to a person."""
    console.print()
    console.print(_tables(report))
    console.print(_checks(report))
    console.print(_steps(report))
    for line in _closing_lines(report):
        console.print(line, highlight=False, soft_wrap=True)


def _table_as_json(table: TableReport) -> dict[str, object]:
    maintenance, quality = table.maintenance, table.quality
    return {
        "table": table.table,
        "rows": table.rows,
        "files_before": maintenance and maintenance.before.files,
        "files_after": maintenance and maintenance.after.files,
        "quality": quality and quality.verdict.value,
        "expectations": quality and quality.expectations,
        "failed_expectations": list(quality.failed_expectations) if quality else None,
        "quality_report": quality and quality.report,
    }


def _tables(report: DemoReport) -> RenderableType:
    shown = Table("table", title="Tables", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("rows", "files before", "after"):
        shown.add_column(column, justify="right")
    shown.add_column("quality")
    for table in report.tables:
        before, after = "", ""
        if table.maintenance is not None:
            before, after = f"{table.maintenance.before.files:,}", f"{table.maintenance.after.files:,}"
        shown.add_row(table.table, f"{table.rows:,}", before, after, _quality_text(table.quality))
    return shown


def _quality_text(quality: QualityObservation | None) -> str:
    if quality is None:
        return ""
    held = quality.expectations - len(quality.failed_expectations)
    return f"{quality.verdict.value}: {held} of {quality.expectations} expectations"


def _checks(report: DemoReport) -> RenderableType:
    shown = Table(title="\nVerified by DuckDB", title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    for check in report.checks:
        mark = "[green]✓[/green]" if check.is_true else "[red]✗[/red]"
        shown.add_row(mark, f"{check.expected_rows:,}", check.statement)
    shown.columns[1].justify = "right"
    return shown


def _steps(report: DemoReport) -> RenderableType:
    shown = Table(title="\nSteps", title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    for step in report.steps:
        begin, end = step.began_after_seconds, step.began_after_seconds + step.seconds
        shown.add_row(step.title, f"{step.seconds:.1f} s", f"[dim]{begin:.0f} to {end:.0f} s[/dim]")
    shown.columns[1].justify = "right"
    return shown


def _closing_lines(report: DemoReport) -> list[str]:
    where = report.where
    lines = [
        "",
        f"{report.balance}.",
        *([report.held] if report.held else []),
        f"[bold green]Verified[/bold green] in {report.total_seconds:.0f} s: {len(report.checks)} checks passed.",
        "",
        f"Airflow       {where.airflow_url}  (user {where.airflow_user}, password in {where.airflow_login_file})",
        f"Quality       {where.quality_reports}",
        f"Stop it with  {STOP_COMMAND}",
    ]
    if report.is_year_over:
        lines += ["", YEAR_IS_OVER]
    return lines
