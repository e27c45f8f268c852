"""What delete files hide is written away once it is much, and then nothing is found to do any more."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.fixtures.upkeep import maintain
from tests.fixtures.workshop import Workshop
from tests.spark.maintenance.test_maintenance import NO_EXPIRY, declare, ids, step, unneeded

from sluice.ledger.maintenance_runs import MaintenanceObservation, MaintenanceStep, StepOutcome
from sluice.maintenance.file_rewrite import rewrite_small_files
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.tables.manifest_reading import statement_without_delete_files

COMPACTION = {"compaction": {"target_file_bytes": "64MiB", "min_input_files": 50}, **NO_EXPIRY}

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector."""


def with_files(workshop: Workshop, *, granularity: str) -> str:
    """A table with two files of ten rows each; its name."""
    properties = {"write.delete.mode": "merge-on-read", "write.delete.granularity": granularity}
    table = declare(workshop, "rows", properties=properties, **COMPACTION)
    for first in (0, 10):
        workshop.append(table, [{"id": first + place, "word": "w"} for place in range(10)])
    return table


def delete(workshop: Workshop, table: str, condition: str) -> None:
    """Delete rows as Spark does, with delete files."""
    workshop.spark.sql(f"REFRESH TABLE lakehouse.{table}")
    workshop.spark.sql(f"DELETE FROM lakehouse.{table} WHERE {condition}")  # noqa: S608  # our own names


def outcome(run: MaintenanceObservation) -> tuple[StepOutcome, str]:
    """What became of the compaction, and why."""
    done = step(run, MaintenanceStep.REWRITE_DATA_FILES)
    return done.outcome, done.reason


def test_what_delete_files_hide_is_written_away_once_it_is_much(workshop: Workshop) -> None:
    table = with_files(workshop, granularity="file")
    delete(workshop, table, "id IN (1, 11)")
    assert outcome(maintain(workshop, table, open_session=unneeded)) == (StepOutcome.SKIPPED, "few_small_files")
    delete(workshop, table, "id BETWEEN 3 AND 9 OR id > 18")
    left = [0, 2, 10, *range(12, 19)]

    run = maintain(workshop, table)

    assert outcome(run) == (StepOutcome.DONE, "deleted_rows")
    assert (run.before.delete_files > 1, run.after.delete_files) == (True, 0)
    assert ids(workshop, table) == left
    result = step(run, MaintenanceStep.REWRITE_DATA_FILES).result
    assert result["rows_hashed"]
    assert result["removed_delete_files_count"] + result["removed_dangling_delete_files"] == run.before.delete_files
    assert outcome(maintain(workshop, table, open_session=unneeded))[0] is StepOutcome.SKIPPED


@pytest.mark.full  # every run: `test_shared_deletes.py`
def test_delete_files_whose_data_files_are_gone_ask_for_nothing(workshop: Workshop) -> None:
    """A compaction without Spark leaves them behind, until Spark compacts for others."""
    table = with_files(workshop, granularity="file")
    delete(workshop, table, "id > 5")
    workshop.append(table, [{"id": 20, "word": "w"}])
    rewrite_small_files(
        PyIcebergCommitter(workshop.catalog),
        table,
        partitions=("",),
        small_file_bytes=10**8,
        compared_bytes=10**9,
        now=datetime.now(tz=UTC),
        identity="a1",
    )

    run = maintain(workshop, table, open_session=unneeded)

    assert run.before.delete_files > 0
    assert outcome(run)[0] is StepOutcome.SKIPPED
    assert ids(workshop, table) == [*range(6), 20]

    delete(workshop, table, "id IN (0, 1, 2)")
    assert maintain(workshop, table).after.delete_files == 0
    assert ids(workshop, table) == [3, 4, 5, 20]


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_the_statement_that_is_named_leaves_no_delete_file(workshop: Workshop, granularity: str) -> None:
    """Also where they hide too little for maintenance, or data files share them."""
    table = with_files(workshop, granularity=granularity)
    delete(workshop, table, "id IN (1, 12)")
    before = maintain(workshop, table, open_session=unneeded).after
    catalog = workshop.settings.catalog.name

    workshop.spark.sql(statement_without_delete_files(table).replace("<catalog>", catalog))

    assert before.delete_files > 0
    after = maintain(workshop, table, open_session=unneeded).after
    assert (after.delete_files, ids(workshop, table)) == (0, [one for one in range(20) if one not in (1, 12)])
