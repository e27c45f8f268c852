"""Rejected rows are marked as resolved in one commit, on a table with real files and history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from tests.fixtures.delete_files import add_delete_file
from tests.unit.pages.test_quarantine_page import declared

from sluice.declarations.loaded_declarations import quarantine_declaration
from sluice.errors import UnpublishableError
from sluice.publication.resolved_rejections import (
    PAYLOAD_PLACE,
    RejectedAt,
    Resolution,
    ResolvedRows,
    claim_rows,
    known_as,
    mark_replayed,
    mark_resolved,
)
from sluice.tables.declared_tables import create_or_evolve_table

STREAM = declared("email")
NAME = STREAM.quarantine_table
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = NOON + timedelta(days=40)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """pyiceberg's own catalog in a file."""
    opened = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    yield opened
    opened.close()


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """A quarantine with two files, of two months, and properties of a mark."""
    create_or_evolve_table(catalog, quarantine_declaration(STREAM))
    table = catalog.load_table(NAME)
    reject(table, ("a", "1"), ("b", "2"), ("b", "2"), (None, "3"), ("a", "1", "another"))
    reject(table, ("c", "4"), (None, "a"), (None, None), at=LATER)
    with table.transaction() as change:
        change.set_properties({"sluice.mark.s.quarantine": "kept"})
    return table


def reject(table: Table, *rows: tuple[Any, ...], at: datetime = NOON, **more: Any) -> None:
    """Append rows, each of a position, a payload and a stream, in one commit. more: other columns of all of them."""
    found = [
        {
            "stream": stream[0] if stream else STREAM.stream,
            "generation": 1,
            "batch": 1,
            "reason": "why",
            "position": position,
            "payload": payload,
            "refused_at": at,
            **more,
        }
        for position, payload, *stream in rows
    ]
    table.append(pa.Table.from_pylist(found, schema=table.schema().as_arrow()))


def resolved(*places: str, resolution: Resolution = Resolution.CORRECTED) -> ResolvedRows:
    """What is marked."""
    return ResolvedRows(stream=STREAM.stream, rows=at(*places), resolution=resolution, by="somebody", at=LATER)


def at(*places: str) -> set[RejectedAt]:
    """What rows are known by."""
    payloads = {"a": "1", "b": "2", "c": "4"}
    return {RejectedAt(place=place, generation=1, batch=1, payload=payloads.get(place)) for place in places}


def rows_of(catalog: Catalog) -> list[tuple[Any, ...]]:
    """The rows of the quarantine: stream, position, payload, and whether and how each is resolved."""
    rows = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    return sorted(
        (
            row["stream"] == STREAM.stream,
            row["position"] or "",
            row["payload"] or "",
            row["resolved_at"],
            row["resolution"],
            row["resolved_by"],
        )
        for row in rows
    )


def test_the_open_rows_of_a_place_are_marked_and_all_others_stay(catalog: Catalog, table: Table) -> None:
    nothing, how = (None, None, None), (LATER, "corrected", "somebody")

    assert mark_resolved(catalog, NAME, resolved("b", f"{PAYLOAD_PLACE}3", f"{PAYLOAD_PLACE}None", "2")) == 3

    assert rows_of(catalog) == [
        (False, "a", "1", *nothing),
        (True, "", "", *nothing),
        (True, "", "3", *how),
        (True, "", "a", *nothing),
        (True, "a", "1", *nothing),
        (True, "b", "2", *how),
        (True, "b", "2", *how),
        (True, "c", "4", *nothing),
    ]
    now = catalog.load_table(NAME)
    head = now.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.operation is Operation.OVERWRITE
    assert (head.summary["total-records"], head.summary["added-records"], head.summary["deleted-records"]) == (
        "8",
        "5",
        "5",
    ), "the file of the other month stays"
    assert now.properties["sluice.mark.s.quarantine"] == "kept"


def test_a_row_is_marked_once(catalog: Catalog, table: Table) -> None:
    assert mark_resolved(catalog, NAME, resolved("a")) == 1
    head = catalog.load_table(NAME).metadata.current_snapshot_id

    assert mark_resolved(catalog, NAME, resolved("a", resolution=Resolution.DISCARDED)) == 0
    assert mark_resolved(catalog, NAME, resolved()) == 0

    assert catalog.load_table(NAME).metadata.current_snapshot_id == head
    assert {row[4] for row in rows_of(catalog) if row[0] and row[1] == "a"} == {"corrected"}


def test_a_row_that_another_batch_has_rejected_at_the_same_place_stays_open(catalog: Catalog, table: Table) -> None:
    """It may be of a topic that was created again."""
    later = {RejectedAt(place="a", generation=1, batch=2), RejectedAt(place="b", generation=2, batch=1)}
    found = ResolvedRows(stream=STREAM.stream, rows=later, resolution=Resolution.DISCARDED, by="somebody", at=LATER)

    assert mark_resolved(catalog, NAME, found) == 0


@pytest.mark.parametrize(
    ("position", "payload", "known_by"),
    [
        ('{"file":"a.csv"}', "1,x", "1,x"),
        ("7", None, None),
        ('{"topic":"t","partition":0,"offset":7}', "1,x", None),
        ('{"stream":"s","shard":"0","sequence_number":"7"}', "1,x", None),
        (None, "1,x", None),
    ],
)
def test_a_row_is_known_by_its_payload_where_other_records_may_stand(
    position: str | None, payload: str | None, known_by: str | None
) -> None:
    at = known_as({"generation": 1, "batch": 2, "position": position, "payload": payload})

    assert at is not None
    assert at.payload == known_by


def reject_another(catalog: Catalog) -> None:
    """A batch of the stream, with another record of the same place."""
    reject(catalog.load_table(NAME), ("a", "5"))


def resolve_another(catalog: Catalog) -> None:
    """Another command, over another row of the same file."""
    mark_resolved(catalog, NAME, resolved("b"))


@pytest.mark.parametrize(("meanwhile", "rows", "marked"), [(reject_another, 9, 1), (resolve_another, 8, 1)])
def test_what_others_change_meanwhile_stays(
    catalog: Catalog, table: Table, meanwhile: Callable[[Catalog], None], rows: int, marked: int
) -> None:
    done: list[bool] = []

    def reached(point: object) -> None:
        if not done:
            done.append(True)
            meanwhile(catalog)

    assert mark_resolved(catalog, NAME, resolved("a"), reached=reached) == marked

    found = rows_of(catalog)
    assert len(found) == rows
    assert {row[4] for row in found if row[0] and row[1:3] == ("a", "1")} == {"corrected"}
    is_other_marked = meanwhile is resolve_another
    assert {row[4] for row in found if row[1] == "b"} == {"corrected" if is_other_marked else None}


def test_rows_that_delete_files_hide_are_not_brought_back(catalog: Catalog) -> None:
    create_or_evolve_table(catalog, quarantine_declaration(STREAM).model_copy(update={"partitioning": ()}))
    table = catalog.load_table(NAME)
    reject(table, ("a", "1"))
    add_delete_file(table)
    with pytest.raises(UnpublishableError, match="has delete files") as refused:
        mark_resolved(catalog, NAME, resolved("a"))
    assert refused.value.next_step == f"Compact it first: `sluice table maintain {NAME}`."


def test_a_quarantine_of_an_older_version_needs_its_columns(catalog: Catalog, table: Table) -> None:
    with table.update_schema() as change:
        for column in ("resolved_at", "resolution", "resolved_by"):
            change.delete_column(column)
    with pytest.raises(UnpublishableError, match="has no column resolved_at") as refused:
        mark_resolved(catalog, NAME, resolved("a"))
    assert f"`sluice table create {NAME}`" in (refused.value.next_step or "")

    create_or_evolve_table(catalog, quarantine_declaration(STREAM))
    assert mark_resolved(catalog, NAME, resolved("a", "c")) == 2


def test_a_claim_leaves_rows_open_and_a_younger_one_is_kept(catalog: Catalog, table: Table) -> None:
    def claims() -> dict[str, tuple[Any, ...]]:
        return {row[1]: row[3:] for row in rows_of(catalog) if row[0] and row[1] in ("a", "b", "c")}

    assert claim_rows(catalog, NAME, stream=STREAM.stream, claimed=at("b", "c"), key="s/replay/2") == 3
    assert claims() == {"a": (None,) * 3, "b": (None, None, "s/replay/2"), "c": (None, None, "s/replay/2")}
    assert claim_rows(catalog, NAME, stream=STREAM.stream, claimed=at("b", "c"), key="s/replay/2") == 0

    assert claim_rows(catalog, NAME, stream=STREAM.stream, claimed=at("a", "b"), key="s/replay/1") == 1
    assert claim_rows(catalog, NAME, stream=STREAM.stream, claimed=at("c"), key="s/replay/3") == 1

    marking = partial(mark_replayed, catalog, NAME, stream=STREAM.stream, is_visible="s/replay/2".__eq__, at=LATER)
    assert (marking(), marking()) == (2, 0)
    assert claims() == {
        "a": (None, None, "s/replay/1"),
        "b": (LATER, "replayed", "s/replay/2"),
        "c": (None, None, "s/replay/3"),
    }
