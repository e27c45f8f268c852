"""Backfills of a stream that reads files: those that it had read, by the log of its checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.backfills import (
    COLUMNS,
    at_step,
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
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.publication.crash_points import CrashPoint
from sluice.settings import FilesConnection

BY_COLUMN = {"records": "at"}
IDS = [one["id"] for one in rows_of_days()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the files."""
    path = tmp_path / "in"
    path.mkdir()
    return path


@pytest.fixture
def files(workshop: Workshop, folder: Path) -> Workshop:
    """A workshop with a connection `here` to the folder."""
    here = FilesConnection(kind="files", root=folder.as_uri())
    connections = {**workshop.settings.connections, "here": here}
    return replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))


@pytest.mark.parametrize("reads", sampled([{}, BY_COLUMN], [BY_COLUMN]), ids=["whole", "by its column"])
def test_an_interval_is_read_from_the_files_that_the_stream_had_read(
    files: Workshop, folder: Path, reads: Mapping[str, str]
) -> None:
    rows, stream = rows_of_days(), declare_file_stream(files, reads)
    write(folder / "a 1.json", rows[:4], "{broken")
    write(folder / "[?] {*}.json", rows[4:])
    for number in range(100, 110):  # each in a batch: Spark compacts the log of the checkpoint with the tenth
        write(folder / f"{number}.json", [row(number, day=1)])
    files.run(stream)
    read = ids_by_duckdb(files)
    assert read == [*IDS, *range(100, 110)]
    (quarantined,) = files.rows(f"quarantine.{stream}")
    write(folder / "unread.json", [row(999, day=6)])
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
    write(folder / "a.json", rows[:12])
    write(folder / "b.json", rows[12:])
    files.run(stream)
    (folder / "b.json").rename(folder.parent / "b.json")

    with pytest.raises(UnpublishableError, match=r"of the files that the stream has read, 1 are gone: .*/in/b\.json\."):
        backfill(files, stream)

    (folder.parent / "b.json").rename(folder / "b.json")
    delete_days(files, "target")
    backfill(files, stream)
    assert ids_by_duckdb(files) == IDS


def test_a_file_that_was_written_again_is_no_input_of_an_interval(files: Workshop, folder: Path) -> None:
    """The stream has not read what it holds now, and stops at it, too."""
    rows, stream = rows_of_days(), declare_file_stream(files, {})
    write(file := folder / "a.json", rows)
    files.run(stream)
    read_at_ns = file.stat().st_mtime_ns
    write(file, [*rows[:12], row(100, day=5)])

    with pytest.raises(UnpublishableError, match=r"1 file was written again after being read: .*/in/a\.json\."):
        backfill(files, stream)

    write(file, rows)
    os.utime(file, ns=(read_at_ns, read_at_ns))
    delete_days(files, "target")
    backfill(files, stream)
    assert ids_by_duckdb(files) == IDS


@pytest.mark.parametrize("step", [CrashPoint.STAGED, CrashPoint.CHECKED])
def test_a_file_that_is_written_again_meanwhile_is_noticed_at_the_commit(
    files: Workshop, folder: Path, step: CrashPoint
) -> None:
    """Before the commit, and between the last look and the commit; then what is visible is what the stream had read."""
    rows, stream = rows_of_days(), declare_file_stream(files, {})
    write(file := folder / "a.json", rows)
    files.run(stream)
    files.append("target", [row(7, day=5, word="forged")])

    def write_again() -> None:
        write(file, [*rows[:12], row(100, day=5)])

    with pytest.raises(UnpublishableError, match=r"1 file was written again after being read: .*/in/a\.json\."):
        backfill(files, stream, allows_fewer=True, reached=at_step(step, write_again))

    is_forged = step is CrashPoint.STAGED
    assert ids_by_duckdb(files) == sorted([*IDS, *([7] if is_forged else [])])
    _, first = recent_attempts(files.ledger, stream, limit=2)
    assert first.state is BackfillState.CHANGED_MEANWHILE
    assert "1 file was written again after being read" in (first.reason or "")


@pytest.mark.parametrize("what", sampled(["written", "removed"], ["written"], full=["removed"]))
def test_an_interval_gets_what_the_files_hold_at_one_time(files: Workshop, folder: Path, what: str) -> None:
    """Also with `on_changed: ignore`, and at the very time and size that the file had."""
    rows, stream = rows_of_days(), declare_file_stream(files, {}, on_changed="ignore")
    write(file := folder / "a.json", rows)
    files.run(stream)
    delete_days(files, "target")
    times_ns = file.stat().st_atime_ns, file.stat().st_mtime_ns
    of_day_5 = next(number for number, one in enumerate(rows) if one["at"].day == 5)

    def change() -> None:
        if what == "removed":
            file.unlink()
        else:
            write(file, [*rows[:of_day_5], {**rows[of_day_5], "word": "wort"}, *rows[of_day_5 + 1 :]])
            os.utime(file, ns=times_ns)

    if what == "removed":
        with pytest.raises(UnpublishableError, match=r"1 are gone: .*/in/a\.json\."):
            backfill(files, stream, reached=at_step(CrashPoint.STAGED, change))
        return
    result = backfill(files, stream, reached=at_step(CrashPoint.STAGED, change))

    assert result.key.endswith("/2")
    words = {one["id"]: one["word"] for one in files.rows("target")}
    assert sorted(words) == IDS
    assert words[rows[of_day_5]["id"]] == "wort"


def declare_file_stream(workshop: Workshop, reads: Mapping[str, str], **source: str) -> str:
    """A stream from files to `target`. source: further keys of its input."""
    name = f"s{workshop.namespace}"
    target = workshop.declare_table("target", COLUMNS, partitioning=[{"column": "at", "transform": "month"}])
    columns = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
    here = {"connection": "here", "format": "json", "columns": columns, "on_malformed": "quarantine", **source}
    limit = {"max_files_per_batch": 1}
    workshop.declare_stream(
        name,
        sql="SELECT id, word, at FROM records",
        inputs={"records": {"stream": {"files": here | limit}}},
        outputs={"copies": {"iceberg": {"table": target}}},
        quarantine=True,
        backfill={"column": "at", "balance": "rows", "reads": dict(reads)},
    )
    return name


def write(file: Path, rows: Sequence[Mapping[str, Any]], *lines: str) -> None:
    """Write a file of JSON lines."""
    encoded = [json.dumps({**one, "at": one["at"].isoformat()}) for one in rows]
    file.write_text("\n".join([*encoded, *lines]) + "\n")
