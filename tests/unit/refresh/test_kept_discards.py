"""New content of a quarantine keeps what a person has discarded in it, on a table with real files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from tests.unit.publication.test_resolved_rejections import LATER, NAME, STREAM, reject, resolved

from sluice.declarations.loaded_declarations import quarantine_declaration
from sluice.publication.publish_batches import live_files
from sluice.publication.resolved_rejections import RejectedAt, Resolution, mark_resolved
from sluice.refresh.settle_refresh import keep_discards
from sluice.tables.declared_tables import create_or_evolve_table

_MARK = (LATER, "discarded", "somebody")
_OPEN = (None, None, None)
_DISCARDED = dict(zip(("resolved_at", "resolution", "resolved_by"), _MARK, strict=True))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """pyiceberg's own catalog in a file."""
    opened = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    create_or_evolve_table(opened, quarantine_declaration(STREAM))
    yield opened
    opened.close()


def rejected(catalog: Catalog, *commits: tuple[tuple[Any, ...], ...], **more: Any) -> Table:
    """The quarantine with rows of some commits, each of a position, a payload and perhaps another stream."""
    for rows in commits:
        reject(catalog.load_table(NAME), *rows, **more)
    return catalog.load_table(NAME)


def new_content(catalog: Catalog, *commits: tuple[tuple[Any, ...], ...], **more: Any) -> list[DataFile]:
    """The files of new content, which the table does not hold yet."""
    table = catalog.load_table(NAME)
    before = table.metadata.current_snapshot_id
    known = {file.file_path for file in live_files(table)}
    files = [one for one in live_files(rejected(catalog, *commits, **more)) if one.file_path not in known]
    table = catalog.load_table(NAME)
    with table.manage_snapshots() as manage:
        assert before is not None
        manage.rollback_to_snapshot(before)
    return files


def of_none(row: RejectedAt) -> bool:
    """Nothing was created again."""
    return False


def kept(
    catalog: Catalog, files: list[DataFile], *, is_of_another: Callable[[RejectedAt], bool | None] = of_none
) -> tuple[list[DataFile], list[tuple[Any, ...]]]:
    """The files that the table is to get, and their rows: position, payload, whether they are of the stream, mark."""
    table = catalog.load_table(NAME)
    found = list(keep_discards(files, target=table, stream=STREAM.stream, is_of_another=is_of_another))
    with table.transaction() as change:
        change.delete(AlwaysTrue())
        with change.update_snapshot().fast_append() as append:
            for file in found:
                append.append_data_file(file)
    rows = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    known = [
        (
            row["position"] or "",
            row["payload"],
            row["stream"] == STREAM.stream,
            (row["resolved_at"], row["resolution"], row["resolved_by"]),
        )
        for row in rows
    ]
    return found, sorted(known, key=str)


def discard(catalog: Catalog, *places: str, resolution: Resolution = Resolution.DISCARDED) -> None:
    """Resolve what is open at some places."""
    assert mark_resolved(catalog, NAME, resolved(*places, resolution=resolution))


def test_a_discarded_record_stays_so_and_one_that_was_corrected_is_open_again(catalog: Catalog) -> None:
    rejected(catalog, (("a", "1"), ("b", "2"), (None, "3"), ("e", "5")))
    discard(catalog, "a", "payload 3")
    discard(catalog, "b", resolution=Resolution.CORRECTED)
    files = new_content(catalog, (("a", "1", "another"), ("a", "1"), ("b", "2"), (None, "3")), (("d", "4"),))

    found, rows = kept(catalog, files)

    assert rows == [
        ("", "3", True, _MARK),
        ("a", "1", False, _OPEN),
        ("a", "1", True, _MARK),
        ("b", "2", True, _OPEN),
        ("d", "4", True, _OPEN),
    ]
    assert len({file.file_path for file in found} & {file.file_path for file in files}) == 1, "without discarded rows"


def test_as_many_rows_of_a_place_are_discarded_as_before(catalog: Catalog) -> None:
    rejected(catalog, ((None, "3"), (None, "3"), (None, None)))
    discard(catalog, "payload 3")
    files = new_content(catalog, ((None, "3"), (None, "3")), ((None, "3"), (None, None)))

    _, rows = kept(catalog, files)

    assert sorted(row[3][1] or "" for row in rows) == ["", "", "discarded", "discarded"]


def test_what_the_new_content_has_as_discarded_itself_counts(catalog: Catalog) -> None:
    """The content that comes back was discarded in part before the refresh."""
    rejected(catalog, ((None, "3"),))
    discard(catalog, "payload 3")
    discarded = live_files(catalog.load_table(NAME))
    files = new_content(catalog, ((None, "3"),))

    found, rows = kept(catalog, [*discarded, *files])

    assert sorted(str(row[3][1]) for row in rows) == ["None", "discarded"]
    assert {file.file_path for file in found} == {file.file_path for file in (*discarded, *files)}


def test_a_discard_of_an_earlier_topic_is_none_of_the_record_at_its_place(catalog: Catalog) -> None:
    rejected(catalog, (("a", "1"), ("b", "2")))
    discard(catalog, "a", "b")
    files = new_content(catalog, (("a", "3"), ("b", "2")))

    def is_of_another(row: RejectedAt) -> bool:
        return row.place == "a"

    _, rows = kept(catalog, files, is_of_another=is_of_another)

    assert rows == [("a", "3", True, _OPEN), ("b", "2", True, _MARK)]


def test_a_record_of_an_earlier_topic_that_comes_back_is_none_of_what_was_discarded(catalog: Catalog) -> None:
    rejected(catalog, (("a", "1"),))
    discard(catalog, "a")
    files = new_content(catalog, (("a", "3"),))
    asked: list[RejectedAt] = []

    def is_of_another(row: RejectedAt) -> bool:
        """The row of the new content alone, which is asked for second."""
        asked.append(row)
        return len(asked) > 1

    _, rows = kept(catalog, files, is_of_another=is_of_another)

    assert rows == [("a", "3", True, _OPEN)]


@pytest.mark.parametrize("earlier", [1, 2], ids=["the discarded one", "the open one"])
def test_a_record_of_an_earlier_topic_is_another_one_also_with_the_same_content(catalog: Catalog, earlier: int) -> None:
    rejected(catalog, (("a", "1"),), **_DISCARDED)
    files = new_content(catalog, (("a", "1"),), batch=2)

    _, rows = kept(catalog, files, is_of_another=lambda row: row.batch == earlier)

    assert rows == [("a", "1", True, _OPEN)]


@pytest.mark.parametrize("payload", ["1", "3"])
@pytest.mark.parametrize("unclear", [1, 2], ids=["the discarded one", "the open one"])
def test_a_discard_of_what_may_be_of_an_earlier_topic_is_of_the_same_content(
    catalog: Catalog, payload: str, unclear: int
) -> None:
    """The position of one of the two rows does not say which of several inputs it is of."""
    rejected(catalog, (("a", "1"),), **_DISCARDED)
    files = new_content(catalog, (("a", payload),), batch=2)

    _, rows = kept(catalog, files, is_of_another=lambda row: None if row.batch == unclear else False)

    assert rows == [("a", payload, True, _MARK if payload == "1" else _OPEN)]


def test_what_the_new_content_has_discarded_of_an_earlier_topic_uses_up_no_discard(catalog: Catalog) -> None:
    for batch, payload in ((1, "1"), (2, "3")):
        rejected(catalog, (("a", payload),), batch=batch, **_DISCARDED)
    files = new_content(catalog, (("a", "1"),), **_DISCARDED) + new_content(catalog, (("a", "3"),), batch=2)

    _, rows = kept(catalog, files, is_of_another=lambda row: row.batch == 1)

    assert rows == [("a", "1", True, _MARK), ("a", "3", True, _MARK)]


def test_what_another_stream_has_discarded_uses_up_no_discard(catalog: Catalog) -> None:
    rejected(catalog, (("a", "1"),), **_DISCARDED)
    files = new_content(catalog, (("a", "1", "another"),), **_DISCARDED) + new_content(catalog, (("a", "1"),))

    _, rows = kept(catalog, files)

    assert rows == [("a", "1", False, _MARK), ("a", "1", True, _MARK)]


def test_nothing_is_read_or_written_where_nothing_is_discarded(catalog: Catalog) -> None:
    rejected(catalog, (("a", "1"),))
    discard(catalog, "a", resolution=Resolution.CORRECTED)
    files = new_content(catalog, (("a", "1"),))

    assert keep_discards(files, target=catalog.load_table(NAME), stream=STREAM.stream, is_of_another=of_none) == tuple(
        files
    )


def test_a_quarantine_of_an_older_version_has_nothing_to_keep(catalog: Catalog) -> None:
    files = live_files(rejected(catalog, (("a", "1"),)))
    with catalog.load_table(NAME).update_schema(allow_incompatible_changes=True) as change:
        for column in ("resolved_at", "resolution", "resolved_by"):
            change.delete_column(column)

    assert keep_discards(files, target=catalog.load_table(NAME), stream=STREAM.stream, is_of_another=of_none) == tuple(
        files
    )


def test_another_record_of_a_file_is_not_discarded_with_one_of_it(catalog: Catalog) -> None:
    """A position in a topic is of one record, in whatever form its payload is repeated."""
    line, offset = '{"file":"a.csv"}', '{"topic":"t","partition":0,"offset":7}'
    rejected(catalog, ((line, "1"), (offset, "then")), **_DISCARDED)
    files = new_content(catalog, ((line, "2"), (line, "1"), (offset, "now")))

    _, rows = kept(catalog, files)

    assert rows == [(line, "1", True, _MARK), (line, "2", True, _OPEN), (offset, "now", True, _MARK)]
