"""Backfills of a stream that reads files: those that it had read, by the log of its checkpoint.

Every run backfills files that are written again meanwhile (`test_changing_inputs.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.fixtures.backfilled_files import declare_file_stream, write_lines
from tests.fixtures.backfills import (
    backfill,
    delete_days,
    ids_by_duckdb,
    row,
    rows_of_days,
    search_gaps,
)
from tests.fixtures.drill import sampled
from tests.fixtures.workshop import Workshop

from sluice.errors import UnpublishableError
from sluice.ledger.backfill_attempts import BackfillState

BY_COLUMN = {"records": "at"}
IDS = [one["id"] for one in rows_of_days()]


# Every run reads files of all names in `test_files_read_once.py`.
@pytest.mark.parametrize("reads", sampled([{}, BY_COLUMN], (), full=[BY_COLUMN]), ids=["whole", "by its column"])
def test_an_interval_is_read_from_the_files_that_the_stream_had_read(
    files: Workshop, folder: Path, reads: Mapping[str, str]
) -> None:
    rows, stream = rows_of_days(), declare_file_stream(files, reads)
    write_lines(folder / "a 1.json", rows[:4], "{broken")
    write_lines(folder / "[?] {*}.json", rows[4:])
    for number in range(100, 110):  # each in a batch: Spark compacts the log of the checkpoint with the tenth
        write_lines(folder / f"{number}.json", [row(number, day=1)])
    files.run(stream)
    read = ids_by_duckdb(files)
    assert read == [*IDS, *range(100, 110)]
    (quarantined,) = files.rows(f"quarantine.{stream}")
    write_lines(folder / "unread.json", [row(999, day=6)])
    delete_days(files, "target")
    found = [(gap.interval.start.day, gap.expected_rows) for gap in search_gaps(files, stream).gaps]
    assert found == [(5, 3), (6, 3), (7, 3)]

    result = backfill(files, stream)

    assert ids_by_duckdb(files) == read
    assert result.rows["quarantined"] == 1
    assert files.rows(f"quarantine.{stream}") == [quarantined]
    assert backfill(files, stream).state is BackfillState.UNCHANGED
    files.run(stream)
    assert ids_by_duckdb(files) == sorted([*read, 999])


@pytest.mark.full
def test_files_that_are_gone_are_named(files: Workshop, folder: Path) -> None:
    rows, stream = rows_of_days(), declare_file_stream(files, {})
    write_lines(folder / "a.json", rows[:12])
    write_lines(folder / "b.json", rows[12:])
    files.run(stream)
    (folder / "b.json").rename(folder.parent / "b.json")

    with pytest.raises(UnpublishableError, match=r"of the files that the stream has read, 1 are gone: .*/in/b\.json\."):
        backfill(files, stream)

    (folder.parent / "b.json").rename(folder / "b.json")
    delete_days(files, "target")
    backfill(files, stream)
    assert ids_by_duckdb(files) == IDS


@pytest.mark.full
def test_a_file_that_was_written_again_is_no_input_of_an_interval(files: Workshop, folder: Path) -> None:
    """The stream has not read what it holds now, and stops at it, too."""
    rows, stream = rows_of_days(), declare_file_stream(files, {})
    write_lines(file := folder / "a.json", rows)
    files.run(stream)
    read_at_ns = file.stat().st_mtime_ns
    write_lines(file, [*rows[:12], row(100, day=5)])

    with pytest.raises(UnpublishableError, match=r"1 file was written again after being read: .*/in/a\.json\."):
        backfill(files, stream)

    write_lines(file, rows)
    os.utime(file, ns=(read_at_ns, read_at_ns))
    delete_days(files, "target")
    backfill(files, stream)
    assert ids_by_duckdb(files) == IDS
