"""The first look at what has arrived: DuckDB compares bronze with the topic as soon as bronze has rows."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from sluice.demo.comparison import CheckResult, compare, require_truth
from sluice.demo.demo_progress import StepLog
from sluice.demo.lakehouse_copy import copy_lakehouse
from sluice.demo.local_platform import LocalPlatform
from sluice.demo.proof import load_sent
from sluice.demo.stream_watch import BRONZE
from sluice.ledger.batches import totals

if TYPE_CHECKING:
    import duckdb

    Database = duckdb.DuckDBPyConnection

_TABLE = "bronze.flights"


def look_at_bronze(platform: LocalPlatform, log: StepLog) -> None:
    """Wait for a batch with rows, then verify that bronze holds the topic as far as it has come, and print it.

    Parameters
    ----------
    log: prints it, with the seconds since the demo began.

    Raises
    ------
    VerificationError: when bronze holds anything else.
    DemonstrationError: when no batch comes, and nothing moves.
    """
    platform.standstill.await_answer(
        lambda: totals(platform.ledger, BRONZE).input_rows or None,
        what=f"{BRONZE} has not delivered a row",
        next_step="Look at `sluice stream status`.",
    )
    with closing(copy_lakehouse(platform.settings, tables=(_TABLE,))) as database:
        load_sent(database, platform.topic.read())
        check = check_arrived(database)
    require_truth([check])
    log.print(
        f"[green]✓[/green] Verified by DuckDB so far: {check.seen_rows:,} rows, {check.statement} "
        f"[dim](after {log.seconds:.1f} s)[/dim]"
    )


def check_arrived(database: Database) -> CheckResult:
    """Compare bronze with the topic as far as it has come.

    A batch takes the records of a partition in their order, so none before the newest one is missing.

    Parameters
    ----------
    database: holds the table `sent` and the copy of bronze.
    """
    return compare(
        database,
        name="first rows of bronze.flights",
        statement="bronze holds the records of the topic, each at its place, and none before the newest is missing",
        expected="""
            select topic, partition, "offset", key, value from sent where "offset" <= (
                select max(arrived."offset") from seen.bronze.flights as arrived
                where arrived.topic = sent.topic and arrived.partition = sent.partition
            )
        """,
        seen='select topic, partition, "offset", decode(key), decode(value) from seen.bronze.flights',
    )
