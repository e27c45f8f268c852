"""What a person has discarded in a quarantine stays discarded when its content is exchanged.

A refresh, and its way back, exchange the rows of a quarantine for others, which may hold the same records as open rows.
These get the marks that the table has when the exchange is planned; a mark that comes meanwhile makes it plan again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import And, EqualTo
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from sluice.publication.file_preparation import read_files, write_files
from sluice.publication.resolved_rejections import RejectedAt, Resolution, known_as
from sluice.tables.catalog import catalog_refusals

_MARK = ("resolved_at", "resolution", "resolved_by")
_KNOWN_BY = ("stream", "generation", "batch", "position", "payload", *_MARK)

_Row = Mapping[str, Any]
_IsOfAnother = Callable[[RejectedAt], bool | None]


def keep_discards(
    files: Sequence[DataFile], *, target: Table, stream: str, is_of_another: _IsOfAnother
) -> tuple[DataFile, ...]:
    """The files of new content for a quarantine, with those rewritten that hold records which are discarded in it.

    As many rows of a place are discarded as the quarantine has discarded there; more of them are open.

    Parameters
    ----------
    files: entries of `target`, the quarantine. stream: the one that rejected the rows.
    is_of_another: whether the record of a row is of a topic or table that was created again since. It has a place of
        another record, so that it gives no mark, and gets none. None where that is not known: then a mark is of the
        row with the same payload.

    Raises
    ------
    LakehouseError: when the rows cannot be read or written.
    """
    if "resolution" not in target.schema().column_names:
        return tuple(files)
    with catalog_refusals(f"read and write the rows of {'.'.join(target.name())}"):
        marks = _Marks(is_of_another)
        for row in _discarded_in(target, stream):
            marks.add(row)
        if not marks.left:
            return tuple(files)
        contents = [(file, read_files(target, [FileScanTask(file)])) for file in files]
        for row in (row for _, rows in contents for row in _known(rows)):
            if row["stream"] == stream and row["resolution"] == Resolution.DISCARDED:
                marks.take(row)  # the new content has it as discarded itself

        def mark_for(row: _Row) -> _Row | None:
            is_open = row["stream"] == stream and row["resolved_at"] is None
            return marks.take(row) if is_open else None

        return tuple(kept for file, rows in contents for kept in _marked(file, rows, mark_for, target))


@dataclass(frozen=True, slots=True)
class _Marks:
    """The marks of discarded rows. left: those rows, by the place of their records."""

    is_of_another: _IsOfAnother
    left: dict[str, list[_Row]] = field(default_factory=dict)

    def add(self, row: _Row) -> None:
        """Take the mark of a discarded row in."""
        if (at := known_as(row)) is not None and self.is_of_another(at) is not True:
            self.left.setdefault(at.place, []).append(row)

    def take(self, row: _Row) -> _Row | None:
        """A row with the mark for another one, which no other gets; none when none is left."""
        at = known_as(row)
        if at is None or (another := self.is_of_another(at)) is True:
            return None
        same = self.left.get(at.place, [])
        for number, one in enumerate(same):
            if one["payload"] == row["payload"] or (another is False and self._is_sure(one, at)):
                return same.pop(number)
        return None

    def _is_sure(self, row: _Row, wanted: RejectedAt) -> bool:
        """Whether a mark is surely of what is there now, and the place of one record alone."""
        at = known_as(row)
        return at is not None and at.payload == wanted.payload and self.is_of_another(at) is False


def _discarded_in(target: Table, stream: str) -> Iterable[_Row]:
    is_discarded = And(
        EqualTo(term="stream", value=stream), EqualTo(term="resolution", value=str(Resolution.DISCARDED))
    )
    return _known(target.scan(is_discarded, selected_fields=_KNOWN_BY).to_arrow())


def _marked(
    file: DataFile, rows: pa.Table, mark_for: Callable[[_Row], _Row | None], target: Table
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
