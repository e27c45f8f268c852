"""What a person has discarded in a quarantine stays discarded when its content is exchanged.

A refresh, and its way back, exchange the rows of a quarantine for others, which may hold the same records as open rows.
These get the marks that the table has when the exchange is planned; a mark that comes meanwhile makes it plan again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import And, EqualTo
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from sluice.publication.file_preparation import read_files, write_files
from sluice.publication.resolved_rejections import RejectedAt, Resolution, known_as, place_of
from sluice.tables.catalog import catalog_refusals

_MARK = ("resolved_at", "resolution", "resolved_by")
_KNOWN_BY = ("stream", "generation", "batch", "position", "payload", *_MARK)

_Row = Mapping[str, Any]
_Marks = dict[str, list[dict[str, Any]]]
"""The marks of discarded rows, by the place of their records: one for each row."""


def keep_discards(
    files: Sequence[DataFile], *, target: Table, stream: str, is_of_another: Callable[[RejectedAt], bool]
) -> tuple[DataFile, ...]:
    """The files of new content for a quarantine, with those rewritten that hold records which are discarded in it.

    As many rows of a place are discarded as the quarantine has discarded there; more of them are open.

    Parameters
    ----------
    files: entries of `target`, the quarantine. stream: the one that rejected the rows.
    is_of_another: whether the record of a row is of a topic or table that was created again since. It has a place of
        another record, so that it gives no mark, and gets none.

    Raises
    ------
    LakehouseError: when the rows cannot be read or written.
    """
    if "resolution" not in target.schema().column_names:
        return tuple(files)
    with catalog_refusals(f"read and write the rows of {'.'.join(target.name())}"):
        marks = _marks_in(target, stream, is_of_another)
        if not marks:
            return tuple(files)
        contents = [(file, read_files(target, [FileScanTask(file)])) for file in files]
        for _, rows in contents:
            _use_up(marks, _known(rows), stream)

        def mark_for(row: _Row) -> dict[str, Any] | None:
            at = known_as(row)
            is_open = row["stream"] == stream and row["resolved_at"] is None
            left = marks.get(at.place) if at is not None and is_open else None
            return left.pop() if left and at is not None and not is_of_another(at) else None

        return tuple(kept for file, rows in contents for kept in _marked(file, rows, mark_for, target))


def _marks_in(target: Table, stream: str, is_of_another: Callable[[RejectedAt], bool]) -> _Marks:
    is_discarded = And(
        EqualTo(term="stream", value=stream), EqualTo(term="resolution", value=str(Resolution.DISCARDED))
    )
    found = defaultdict(list)
    for row in target.scan(is_discarded, selected_fields=_KNOWN_BY).to_arrow().to_pylist():
        if (at := known_as(row)) is not None and not is_of_another(at):
            found[at.place].append({name: row[name] for name in _MARK})
    return dict(found)


def _use_up(marks: _Marks, rows: Iterable[_Row], stream: str) -> None:
    """Leave out the marks of rows that the new content has as discarded itself."""
    for row in rows:
        is_discarded = row["stream"] == stream and row["resolution"] == Resolution.DISCARDED
        if is_discarded and (left := marks.get(place_of(row) or "")):
            left.pop()


def _marked(
    file: DataFile, rows: pa.Table, mark_for: Callable[[_Row], dict[str, Any] | None], target: Table
) -> Iterable[DataFile]:
    given = [mark_for(row) for row in _known(rows)]
    if not any(given):
        return (file,)
    for name in _MARK:
        column = rows.schema.field(name)
        values = [row[name] if mark is None else mark[name] for row, mark in zip(_known(rows), given, strict=True)]
        rows = rows.set_column(rows.schema.get_field_index(name), column, pa.array(values, column.type))
    return write_files(target.metadata, target.io, rows)


def _known(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.select(list(_KNOWN_BY)).to_pylist()
