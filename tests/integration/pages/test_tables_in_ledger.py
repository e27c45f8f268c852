"""What the pages of tables read from a real ledger, by an index, and whose streams they name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.fixtures.grown_ledgers import watched_queries
from tests.fixtures.sample_declarations import write_continuous_stream, write_table
from tests.integration.ledger.test_upkeep import MAINTENANCE, NOON, QUALITY

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.ledger.batch_findings import RuleCount, RuleResult, add_rule_results, rule_results_of_tables
from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import record_maintenance
from sluice.ledger.recorded_checks import record_quality
from sluice.pages.quality_report import SUMMARY_CHECKS, charts_of_report, has_rules
from sluice.pages.table_lines import TableLine
from sluice.pages.table_lines import observe_tables as observe_tables_with
from sluice.pages.table_looks import TableLook
from sluice.pages.table_page import load_table_page
from sluice.quality.rule_results import read_report

LARGE = frozenset({"maintenance_runs", "quality_results", "events"})


def observe_tables(
    ledger: Ledger,
    declarations: Declarations,
    *,
    readable_streams: Iterable[str],
    only: str | None = None,
    look: TableLook | None = None,
) -> tuple[TableLine, ...]:
    """The lines, where the catalog says this of `bronze.flights`, and nothing of the others."""
    seen = {} if look is None else {"bronze.flights": look}
    return observe_tables_with(ledger, declarations, readable_streams=readable_streams, looks=lambda _: seen, only=only)


@pytest.fixture
def declarations(tmp_path: Path) -> Declarations:
    """Two tables and the stream between them, whose rejected rows go to a quarantine."""
    for table in ("bronze.flights", "silver.flights"):
        write_table(tmp_path, table)
    stream = write_continuous_stream(tmp_path, "silver", more="quarantine: true\n")
    (tmp_path / "rows.py").write_text("def rows(**inputs):\n    pass\n")
    stream.write_text(stream.read_text().replace("sql: rows.sql", "python: rows.py:rows"))
    declarations = load_declarations(tmp_path)
    assert declarations.broken == {}
    return declarations


def test_a_line_has_the_newest_figures(ledger: Ledger, declarations: Declarations) -> None:
    earlier = replace(MAINTENANCE, before=replace(MAINTENANCE.before, small_files=7), file_sizes=(), kept=())
    record_maintenance(ledger, earlier)
    record_maintenance(ledger, MAINTENANCE)
    record_quality(ledger, QUALITY, sentence="It failed.")

    lines = {line.table: line for line in observe_tables(ledger, declarations, readable_streams={"silver"})}

    assert sorted(lines) == ["bronze.flights", "quarantine.silver", "silver.flights"]
    line = lines["bronze.flights"]
    assert line.debt == 0
    assert line.file_sizes == (0, 0, 0, 0, 1, 0, 0)
    assert (line.holders, line.others_hold) == (("silver",), 1)
    assert line.held_for == timedelta(days=5, seconds=9)
    assert (line.failed, line.expectations) == (1, 1)
    assert lines["silver.flights"].maintained_at is None
    assert lines["quarantine.silver"].writers == ("silver",)


def test_rows_are_those_of_the_newest_snapshot_and_without_the_catalog_those_after_maintenance(
    ledger: Ledger, declarations: Declarations
) -> None:
    look = TableLook(exists=True, rows=7, files=2, bytes=9, fresh_at=NOON)
    (before,) = observe_tables(ledger, declarations, readable_streams=(), only="bronze.flights", look=look)
    record_maintenance(ledger, MAINTENANCE)

    (seen,) = observe_tables(ledger, declarations, readable_streams=(), only="bronze.flights", look=look)
    (unseen,) = observe_tables(ledger, declarations, readable_streams=(), only="bronze.flights")
    away = TableLook(problem="Connection refused")
    (unread,) = observe_tables(ledger, declarations, readable_streams=(), only="bronze.flights", look=away)
    missing = TableLook()
    (gone,) = observe_tables(ledger, declarations, readable_streams=(), only="bronze.flights", look=missing)

    assert (before.rows, before.files, before.fresh_at, before.exists) == (7, 2, NOON, True)
    assert (seen.rows, seen.files, seen.bytes) == (7, 2, 9)
    assert unseen.rows == unread.rows == MAINTENANCE.after.rows != 7
    assert (unseen.exists, unread.exists, gone.exists) == (None, None, False)


def test_a_table_with_rules_of_its_batches_alone_is_not_one_without_rules(ledger: Ledger, tmp_path: Path) -> None:
    rule = "rules:\n  - {name: early, expression: 'at < now()', on_failure: warn, owner: analysts}\n"
    write_table(tmp_path, "silver.flights", more=rule)
    write_table(tmp_path, "bronze.flights")
    for stream in ("often", "seldom"):
        write_continuous_stream(tmp_path, stream, reads="bronze.flights", writes="silver.flights")
    declarations = load_declarations(tmp_path)
    assert declarations.broken == {}
    for batch in range(SUMMARY_CHECKS + 1):
        judged(ledger, "seldom" if batch == 0 else "often", batch, failed=int(batch == SUMMARY_CHECKS))

    (line,) = observe_tables(ledger, declarations, readable_streams={"often"}, only="silver.flights")
    report = read_report(ledger, declarations, declarations.tables["silver.flights"].declaration)

    assert has_rules(line)
    assert (line.quality_words, line.found, line.holding, line.is_healthy) == ("failed", 1, 0, False)
    assert len(charts_of_report(report)) == 3
    (early,) = report.rules
    assert (early.owner, len(early.results)) == ("analysts", SUMMARY_CHECKS + 1)
    assert early.newest is not None
    assert early.newest.found == f"1 of 5 rows of batch 1:{SUMMARY_CHECKS} of often break it"
    written = [("silver.flights", "often"), ("silver.flights", "seldom")]
    found = rule_results_of_tables(ledger, written, limit=3)["silver.flights"]
    newest = [("often", SUMMARY_CHECKS - n) for n in range(3)]
    assert [(one.stream, one.batch) for one in found] == [*newest, ("seldom", 0)], "a stream that writes seldom, too"
    with ledger.transaction() as connection:
        connection.execute(text(_JUDGED))
        connection.execute(text("ANALYZE sluice.rule_results"))
    with watched_queries(ledger) as watched:
        observe_tables(ledger, declarations, readable_streams={"often"})
    assert watched.whole_scans(ledger, frozenset({"rule_results"})) == []


_JUDGED = """
INSERT INTO sluice.rule_results (stream, generation, batch, output, "table", rows, rules)
SELECT 's' || n % 200, 1, n, 'main', 't' || n % 200, rows, rules
FROM sluice.rule_results, generate_series(100, 2000) AS n WHERE stream = 'often'
ON CONFLICT DO NOTHING
"""


def judged(ledger: Ledger, stream: str, batch: int, *, failed: int) -> None:
    """Record what the rule found in a batch."""
    found = RuleCount(counted=5, failed=failed, on_failure="warn", is_broken=failed > 0)
    result = RuleResult(
        stream=stream,
        generation=1,
        batch=batch,
        output="main",
        table="silver.flights",
        rows=5,
        rules={"early": found},
    )
    with ledger.transaction() as connection:
        add_rule_results(connection, [result])


def test_streams_that_may_not_be_read_are_not_named(ledger: Ledger, declarations: Declarations) -> None:
    record_maintenance(ledger, MAINTENANCE)

    (first, second) = observe_tables(ledger, declarations, readable_streams=())

    assert (first.table, second.table) == ("bronze.flights", "silver.flights"), "a quarantine is called like its stream"
    assert (first.readers, first.holders, first.others_hold) == ((), (), 2)
    assert load_table_page(ledger, first, MaintenanceDeclaration()).kept == ()


def test_the_page_of_a_table_counts_the_batches_since_its_maintenance(
    ledger: Ledger, declarations: Declarations
) -> None:
    record_maintenance(ledger, replace(MAINTENANCE, table="silver.flights"))
    with ledger.transaction() as connection:
        connection.execute(text(_BATCHES), {"at": NOON + timedelta(seconds=9)})
    (line,) = observe_tables(ledger, declarations, readable_streams={"silver"}, only="silver.flights")

    page = load_table_page(ledger, line, MaintenanceDeclaration())

    assert page.batches_since == 3
    assert [kept.stream for kept in page.kept] == ["silver"]
    assert page.runs[0].file_sizes == MAINTENANCE.file_sizes
    assert observe_tables(ledger, declarations, readable_streams=(), only="no.such") == ()


_BATCHES = """
INSERT INTO sluice.batches (stream, generation, batch, run_id, started_at, duration_ms, input_rows, published_rows,
  refused_rows, late_rows, duplicate_rows, start_offsets, end_offsets, snapshot_ids, durations_ms, recorded_at)
SELECT 'silver', 1, n, 'r', now(), 1, 1, '{}', 0, 0, 0, '{}', '{}', '{}', '{}',
  CAST(:at AS timestamptz) + n * interval '1 s'
FROM generate_series(0, 3) AS n
"""


def test_no_query_reads_a_whole_table(ledger: Ledger, declarations: Declarations) -> None:
    record_maintenance(ledger, replace(MAINTENANCE, table="silver.flights"))
    record_quality(ledger, replace(QUALITY, table="silver.flights"), sentence="It failed.")
    with ledger.transaction() as connection:
        for table, columns in _COLUMNS.items():
            names = ", ".join(f'"{column}"' for column in columns)
            connection.execute(
                text(
                    f"INSERT INTO sluice.{table} (\"table\", {names}) SELECT 't' || n % 200, {names} "  # noqa: S608  # of this test
                    f"FROM sluice.{table}, generate_series(1, 20000) AS n"
                )
            )
        connection.execute(
            text(
                "INSERT INTO sluice.events "
                "(subject, name, actor_kind, actor_name, action, reason, explanation, evidence) "
                "SELECT 'table', 't' || n % 200, 'component', 'a', 'maintain_table', 'r', '', '{}' "
                "FROM generate_series(1, 20000) AS n"
            )
        )
        connection.execute(text("ANALYZE"))
    with watched_queries(ledger) as watched:
        lines = observe_tables(ledger, declarations, readable_streams={"silver"})
        load_table_page(ledger, next(line for line in lines if line.maintained_at), MaintenanceDeclaration())

    assert len(watched.sent) >= 5
    assert watched.whole_scans(ledger, LARGE) == []


_COLUMNS = {
    "maintenance_runs": [
        *("started_at", "ended_at", "launched_by", "before_rows", "after_rows", "before_files", "after_files"),
        *("before_bytes", "after_bytes", "before_delete_files", "after_delete_files", "before_manifests"),
        *(
            "after_manifests",
            "before_snapshots",
            "after_snapshots",
            "operations",
            "before_small_files",
            "after_small_files",
            "file_sizes",
        ),
    ],
    "quality_results": [
        *("checked_at", "launched_by", "verdict", "rows", "expectations", "failed_expectations", "details"),
    ],
}
