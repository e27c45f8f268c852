"""The first look at what has arrived: DuckDB compares bronze with the topic as soon as bronze has rows."""

from __future__ import annotations

from contextlib import closing

from sluice.demo import verification
from sluice.demo.comparison import require_truth
from sluice.demo.demo_progress import StepLog
from sluice.demo.lakehouse_copy import SEEN, copy_lakehouse
from sluice.demo.local_platform import LocalPlatform
from sluice.demo.proof import load_sent
from sluice.demo.stream_watch import BRONZE
from sluice.ledger.batches import totals

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
        # A batch takes the records of a partition in their order, so none before the newest one is missing.
        database.execute(
            f"""
            delete from sent where "offset" > coalesce(
                (
                    select max(arrived."offset") from {SEEN}.{_TABLE} as arrived
                    where arrived.topic = sent.topic and arrived.partition = sent.partition
                ),
                -1
            )
            """  # noqa: S608  # our own names
        )
        check = verification.bronze_holds_every_record_once(database)
    require_truth([check])
    log.print(
        f"[green]✓[/green] DuckDB reads the first {check.seen_rows:,} rows of {_TABLE}: each is in the topic at the "
        f"same place, none is missing before it [dim](after {log.seconds:.1f} s)[/dim]"
    )
