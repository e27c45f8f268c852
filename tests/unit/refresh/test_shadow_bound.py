"""Where each batch of a shadow ends: never behind what the stream has read, and at last exactly there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sluice.checkpoints.compatibility import fingerprint_of
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import UnpublishableError
from sluice.refresh.observe_refresh import changed_inputs
from sluice.refresh.shadow_bound import (
    ShadowBound,
    next_ends,
    next_of_files,
    next_of_table,
    next_of_topics,
    require_not_beyond,
)
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, TableStep, history_read_by


def offset(snapshot_id: int, position: int = 0, *, scans: bool = False) -> StreamOffset:
    """A place in a table."""
    return StreamOffset(snapshot_id=snapshot_id, position=position, scan_all_files=scans)


def append(snapshot_id: int, files: int = 2) -> TableStep:
    """A snapshot that appended files of ten rows."""
    return TableStep(
        snapshot_id=snapshot_id, appended_files=files, appended_rows=10 * files, total_files=100 + snapshot_id
    )


def overwrite(snapshot_id: int) -> TableStep:
    """A snapshot that corrected rows."""
    return TableStep(snapshot_id=snapshot_id, operation="overwrite", total_files=100 + snapshot_id)


HISTORY = (append(6), overwrite(5), append(4), append(3), overwrite(2), append(1))
TABLE = IcebergSource(table="a.b")


def ends_from(at: StreamOffset, end: StreamOffset, source: IcebergSource = TABLE) -> list[StreamOffset]:
    """The ends of all batches."""
    found: list[StreamOffset] = []
    while (following := next_of_table(at, end, HISTORY, source)) is not None:
        found.append(following)
        at = following
    return found


@pytest.mark.parametrize(
    ("at", "end", "found"),
    [
        (offset(1), offset(4, 2), [offset(4, 2)]),
        (offset(1), offset(4, 1), [offset(4, 1)]),
        (offset(4, 1), offset(4, 2), [offset(4, 2)]),
        (offset(4, 2), offset(4, 2), []),
        (offset(4, 104, scans=True), offset(4, 2), []),
        (offset(4, 50, scans=True), offset(4, 2), [offset(4, 2)]),
        (offset(5, 105, scans=True), offset(4, 2), []),
        (offset(3, 103, scans=True), offset(4, 1), [offset(4, 1)]),
        (offset(BEGINNING), offset(3, 2), [offset(3, 2)]),
        (offset(6, 2), offset(4, 2), []),
        (offset(1), offset(BEGINNING), []),
    ],
)
def test_a_table_is_read_exactly_as_far_as_the_stream_has_read_it(
    at: StreamOffset, end: StreamOffset, found: list[StreamOffset]
) -> None:
    assert ends_from(at, end) == found


@pytest.mark.parametrize("limit", [{"max_files_per_batch": 2}, {"max_rows_per_batch": 20}])
def test_batches_of_a_table_obey_its_limits(limit: dict[str, int]) -> None:
    source = IcebergSource(table="a.b", **limit)
    assert ends_from(offset(1), offset(6, 1), source) == [offset(1, 2), offset(3, 2), offset(4, 2), offset(6, 1)]


def test_an_end_that_the_table_does_not_list_any_more_is_refused() -> None:
    with pytest.raises(UnpublishableError, match=r"The history of a\.b does not have snapshot 99 any more"):
        next_of_table(offset(1), offset(99, 1), HISTORY, TABLE)


@pytest.mark.parametrize(
    ("end", "read"),
    [
        (offset(4, 2), [5, 4, 3, 2, 1]),
        (offset(4, 1), [3, 2, 1]),
        (offset(4, 0), [3, 2, 1]),
        (offset(5, 0), [5, 4, 3, 2, 1]),
        (offset(3, 103, scans=True), [3, 2, 1]),
        (offset(6, 2), [6, 5, 4, 3, 2, 1]),
        (offset(BEGINNING), []),
        (offset(99, 1), None),
    ],
)
def test_a_scan_may_take_the_snapshots_that_the_stream_has_read(end: StreamOffset, read: list[int] | None) -> None:
    found = history_read_by(HISTORY, end)
    assert (found if found is None else [step.snapshot_id for step in found]) == read


@pytest.mark.parametrize("most", [None, 1, 3, 7, 1_000])
def test_a_topic_is_read_exactly_as_far_as_the_stream_has_read_it(most: int | None) -> None:
    end = {"t": {"0": 10, "1": 3, "2": 0}, "u": {"0": 5}}
    at: Any = {"t": {"0": 4, "1": 3, "2": 0}}
    read = 0
    while (following := next_of_topics(at, end, most=most)) is not None:
        step = _total(following) - _total({"t": {"0": 4, "1": 3}} if read == 0 else at)
        assert 0 < step <= max(most or 11, len(end) + 1)
        assert all(following[topic][one] <= last for topic, of in end.items() for one, last in of.items())
        at, read = following, read + step
    assert (at, read) == (end, 11)


def _total(offsets: Any) -> int:
    return sum(number for numbers in offsets.values() for number in numbers.values())


def test_a_partition_that_is_behind_the_end_already_moves_nothing() -> None:
    assert next_of_topics({"t": {"0": 12}}, {"t": {"0": 10}}, most=None) is None


@pytest.mark.parametrize(("is_limited", "ends"), [(False, [3]), (True, [0, 1, 2, 3])])
def test_files_are_read_up_to_the_entry_of_the_stream(is_limited: bool, ends: list[int]) -> None:
    at: Any = None
    found = []
    while (following := next_of_files(at, {"logOffset": 3}, is_limited=is_limited)) is not None:
        found.append(following["logOffset"])
        at = following
    assert found == ends


DECLARED: dict[str, Any] = {
    "stream": "gold",
    "description": "d",
    "owner": "o",
    "mode": "continuous",
    "trigger": {"processing_time": "2 seconds"},
    "inputs": {
        "rows": {"stream": {"iceberg": {"table": "a.b"}}},
        "records": {"stream": {"kafka": {"connection": "k", "topics": ["t"]}}},
    },
    "transformation": {"sql": "gold.sql"},
    "outputs": {"main": {"iceberg": {"table": "c.d"}}},
}
DECLARATION = StreamDeclaration.model_validate(DECLARED)


def ends(at: Sequence[Any], offsets: dict[str, Any]) -> Any:
    """The next ends of a stream that joins a table with itself and a topic."""
    bound = ShadowBound(offsets=offsets, checkpoint="file:///c", sources=("rows", "records"))
    sources = ("records", "rows", "rows (2)")
    return next_ends(sources, at, bound, DECLARATION, histories={"a.b": HISTORY})


def test_each_source_of_a_query_has_its_own_end() -> None:
    read = {"version": 1, "snapshot_id": 4, "position": 2, "scan_all_files": False}
    first = {**read, "snapshot_id": 1, "position": 0}
    offsets = {"rows": read, "records": {"t": {"0": 5}}}

    assert ends((None, first, first), offsets) == ({"t": {"0": 5}}, read, read)
    assert ends(({"t": {"0": 5}}, read, first), offsets) == ({"t": {"0": 5}}, read, read)
    assert ends(({"t": {"0": 5}}, read, read), offsets) is None
    assert ends((None, first, first), {"rows": None, "records": None}) is None, "the stream has read nothing of them"


READ = {"version": 1, "snapshot_id": 4, "position": 1, "scan_all_files": False}


@pytest.mark.parametrize(
    ("records", "rows", "is_beyond"),
    [
        ({"t": {"0": 5}}, READ, False),
        ({"t": {"0": 6}}, READ, True),
        ({"t": {"0": 5, "1": 1}}, READ, True),
        (None, None, False),
        (None, {**READ, "position": 2}, True),
        (None, {**READ, "snapshot_id": 6}, True),
        (None, {**READ, "snapshot_id": 3, "position": 2}, False),
    ],
)
def test_a_shadow_that_has_read_more_than_the_stream_is_not_swapped(records: Any, rows: Any, is_beyond: bool) -> None:
    bound = ShadowBound(offsets={"rows": READ, "records": {"t": {"0": 5}}}, checkpoint="file:///c", sources=())
    given = (("records", "rows"), (records, rows), bound, DECLARATION)

    if not is_beyond:
        require_not_beyond(*given, histories={"a.b": HISTORY})
        return
    with pytest.raises(UnpublishableError, match=r"The shadow has read input .* further than the stream"):
        require_not_beyond(*given, histories={"a.b": HISTORY})


def test_a_scan_at_a_correction_behind_what_the_stream_has_read_is_not_beyond_it() -> None:
    read = {**READ, "position": 2}
    bound = ShadowBound(offsets={"rows": read}, checkpoint="file:///c", sources=())
    scanned = {"version": 1, "snapshot_id": 5, "position": 105, "scan_all_files": True}
    require_not_beyond(("rows",), (scanned,), bound, DECLARATION, histories={"a.b": HISTORY})


def test_inputs_of_other_data_are_not_bound_by_what_the_stream_has_read() -> None:
    recorded = fingerprint_of(DECLARATION)

    assert changed_inputs(DECLARATION, recorded) == ()
    assert changed_inputs(DECLARATION, recorded | {"input rows": "iceberg of another table"}) == ("rows",)
