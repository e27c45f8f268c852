"""A stream goes back behind a removal of old rows: they come back with the table, and go with the next maintenance.

Every run takes a stream back without one (`test_rewinds.py`), and shows that such a removal corrects nothing
(`test_source_bounds.py`).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from tests.integration.cli.test_operations import Copier, copier
from tests.integration.positions.test_rewinds import killed, published, require_rewound, rewound

from sluice.publication.checked_commit import Landed, TableChange, commit_checked
from sluice.publication.crash_points import CrashPoint
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.tables.table_observation import RemovedRows, removed_rows

__all__ = ["copier"]


def remove_oldest(copier: Copier, *, is_retention: bool) -> None:
    """Remove a file as retention does, or as a person."""
    removal = RemovedRows(column="at", before=datetime(2026, 8, 22, tzinfo=UTC))

    def plan(table: Table) -> TableChange:
        oldest = min(table.scan().plan_files(), key=lambda task: task.file.file_path).file
        entries = removal.entries() if is_retention else {}
        return TableChange(operation=Operation.DELETE, removed=(oldest,), summary=entries, properties=entries)

    committer = PyIcebergCommitter(copier.bench.catalog)
    assert isinstance(commit_checked(committer, copier.bench.output.target, plan, what="a removal"), Landed)


@pytest.mark.full
@pytest.mark.parametrize("is_retention", [True, False], ids=["old rows", "a person's delete"])
def test_a_removal_of_old_rows_is_nothing_that_anybody_counts_on(
    copier: Copier, capsys: pytest.CaptureFixture[str], is_retention: bool
) -> None:
    published(copier)
    remove_oldest(copier, is_retention=is_retention)

    code, shown, errors = rewound(copier, capsys, "--dry-run", "--json")

    (found,) = json.loads(shown)["plans"]
    assert (code, found["refusals"] == []) == ((0, True) if is_retention else (1, False)), errors
    if is_retention:
        assert rewound(copier, capsys, "--yes")[0] == 0
        require_rewound(copier)
        table = copier.bench.catalog.load_table(copier.bench.output.target)
        assert removed_rows(table.properties) is None, "its rows are there again"


@pytest.mark.full
def test_a_rewind_behind_a_removal_is_completed_where_it_was_killed(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """Main is back, and the marks stand where the removal was."""
    published(copier)
    remove_oldest(copier, is_retention=True)
    killed(copier, CrashPoint.COMMITTED, 1)
    assert rewound(copier, capsys, "--yes")[0] == 0
    require_rewound(copier)
