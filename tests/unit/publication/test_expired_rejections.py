"""Rejected rows that are kept no longer leave a quarantine in one commit, on a table with real files and history."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Operation
from tests.unit.publication.test_resolved_rejections import NAME, STREAM, catalog

from sluice.declarations.loaded_declarations import quarantine_declaration
from sluice.declarations.stream_declaration import QuarantineRetention
from sluice.errors import UnpublishableError
from sluice.publication.expired_rejections import remove_expired
from sluice.tables.declared_tables import create_or_evolve_table

__all__ = ["catalog"]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BOTH = QuarantineRetention(resolved=timedelta(days=7), open=timedelta(days=30))
ROWS: dict[str, dict[str, Any]] = {
    "open": {"refused": 29},
    "open too long": {"refused": 31},
    "claimed by a replay": {"refused": 31, "by": "a replay"},
    "resolved": {"refused": 300, "resolved": 6},
    "resolved too long": {"refused": 20, "resolved": 8},
}


def reject(catalog: Catalog, *payloads: str) -> None:
    """Append these of `ROWS` in one commit."""
    create_or_evolve_table(catalog, quarantine_declaration(STREAM))
    table = catalog.load_table(NAME)
    found = [
        {
            "stream": STREAM.stream,
            "generation": 1,
            "batch": 1,
            "reason": "why",
            "payload": payload,
            "refused_at": NOW - timedelta(days=ROWS[payload]["refused"]),
            "resolved_by": ROWS[payload].get("by"),
            **resolution(ROWS[payload].get("resolved")),
        }
        for payload in payloads
    ]
    table.append(pa.Table.from_pylist(found, schema=table.schema().as_arrow()))


def resolution(days_ago: int | None) -> dict[str, Any]:
    """The columns of a row that was resolved so many days ago; nothing of an open one."""
    if days_ago is None:
        return {}
    return {"resolved_at": NOW - timedelta(days=days_ago), "resolution": "replayed", "resolved_by": "somebody"}


def left(catalog: Catalog) -> set[str]:
    """The payloads that are still there."""
    return {row["payload"] for row in catalog.load_table(NAME).scan().to_arrow().to_pylist()}


def none(keys: Collection[tuple[int, int]], since: datetime) -> tuple[tuple[int, int], ...]:
    """No batch became visible late."""
    return ()


def removed(catalog: Catalog, retention: QuarantineRetention) -> tuple[int, list[int]]:
    """How many rows are removed, and of how many was said so before."""
    said: list[int] = []
    count = remove_expired(
        catalog, NAME, retention, stream=STREAM.stream, now=NOW, arrived=none, before_commit=said.append
    )
    return count, said


@pytest.mark.parametrize(
    ("retention", "gone"),
    [
        (BOTH, {"open too long", "resolved too long"}),
        (QuarantineRetention(resolved=timedelta(days=7)), {"resolved too long"}),
        (QuarantineRetention(open=timedelta(days=30)), {"open too long"}),
        (QuarantineRetention(open=timedelta(days=400)), set()),
    ],
    ids=["both", "resolved alone", "open alone", "nothing"],
)
def test_rows_that_are_kept_no_longer_are_removed_once_and_no_others(
    catalog: Catalog, retention: QuarantineRetention, gone: set[str]
) -> None:
    reject(catalog, *ROWS)
    reject(catalog, "open")

    assert removed(catalog, retention) == (len(gone), [len(gone)] if gone else [])

    assert left(catalog) == ROWS.keys() - gone
    assert removed(catalog, retention) == (0, [])
    newest = catalog.load_table(NAME).current_snapshot()
    assert newest is not None
    assert newest.summary is not None
    assert not gone or newest.summary.operation is Operation.OVERWRITE


def test_a_file_without_a_row_to_keep_is_taken_out_and_the_mark_stays(catalog: Catalog) -> None:
    reject(catalog, "open too long", "resolved too long")
    reject(catalog, "open")
    table = catalog.load_table(NAME)
    with table.transaction() as change:
        change.set_properties({"sluice.mark.s.quarantine": "kept"})

    assert removed(catalog, BOTH) == (2, [2])

    table = catalog.load_table(NAME)
    assert left(catalog) == {"open"}
    assert len(list(table.scan().plan_files())) == 1
    assert table.properties["sluice.mark.s.quarantine"] == "kept"


def test_a_row_that_comes_meanwhile_stays(catalog: Catalog) -> None:
    reject(catalog, "open too long")
    counts: list[int] = []

    def another_writer_commits_first(count: int) -> None:
        counts.append(count)
        if len(counts) == 1:
            reject(catalog, "open", "resolved too long")

    remove_expired(
        catalog, NAME, BOTH, stream=STREAM.stream, now=NOW, arrived=none, before_commit=another_writer_commits_first
    )

    assert (left(catalog), counts) == ({"open"}, [1, 2])


def test_a_quarantine_of_an_earlier_version_is_left_alone(catalog: Catalog) -> None:
    declared = quarantine_declaration(STREAM)
    old = [column for column in declared.columns if not column.name.startswith("resol")]
    create_or_evolve_table(catalog, declared.model_copy(update={"columns": tuple(old)}))

    with pytest.raises(UnpublishableError, match="has no column resolved_at"):
        removed(catalog, BOTH)


def test_an_open_row_of_a_batch_that_was_held_so_long_stays_until_it_was_visible_so_long(catalog: Catalog) -> None:
    reject(catalog, "open too long", "resolved too long")
    asked: list[tuple[Collection[tuple[int, int]], datetime]] = []

    def arrived(keys: Collection[tuple[int, int]], since: datetime) -> Collection[tuple[int, int]]:
        asked.append((keys, since))
        return keys

    remove_expired(catalog, NAME, BOTH, stream=STREAM.stream, now=NOW, arrived=arrived, before_commit=lambda _: None)

    assert left(catalog) == {"open too long"}
    assert asked == [({(1, 1)}, NOW - timedelta(days=30))]
