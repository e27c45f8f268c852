"""Completes the commits of a refresh, or of its way back, records what the tables show, and keeps what was discarded.

    the declared output ─► the quarantine ─► record

The mark of the declared output decides: when it is in the generation that the refresh opens, the refresh has landed,
and what follows is completed, also by another process, with files that lie there since before the first commit. No one
else opens the generation of a refresh that is not settled. Every run of a stream, and every command over its refreshes,
settles it first.

A refresh, and its way back, exchange the rows of a quarantine for others, which may hold the same records as open rows.
These get the marks that the table has when the exchange is planned; a mark that comes meanwhile makes it plan again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from sluice.backfill.replayable_rows import PresentSource
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.ledger.connection import Ledger
from sluice.ledger.refreshes import RefreshObservation, RefreshState, record_swap, record_taken_back, unsettled_refresh
from sluice.publication.chain import MarkPosition
from sluice.publication.checked_commit import HeadTag
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.file_preparation import fit_files, read_files, write_files
from sluice.publication.marks import read_mark
from sluice.publication.publish_batches import live_files
from sluice.publication.resolved_rejections import RejectedAt, Resolution, known_as
from sluice.refresh.shadow_stream import Exchanged, exchanged_outputs
from sluice.refresh.swap_content import NewContent, plan_copies, rows_at, swap_content, swap_key
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import require_table

ContentOf = Callable[[Exchanged], NewContent]
"""What a table is to hold."""

_MARK = ("resolved_at", "resolution", "resolved_by")
_KNOWN_BY = ("stream", "generation", "batch", "position", "payload", *_MARK)

_Row = Mapping[str, Any]
_IsOfAnother = Callable[[RejectedAt], bool | None]


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


def exchange_all(
    catalog: Catalog, exchanged: tuple[Exchanged, ...], content_of: ContentOf, *, reached: Reached = unnoticed
) -> Mapping[str, int]:
    """Exchange the content of one table after the other; what is exchanged already stays.

    Parameters
    ----------
    reached: called with `FIRST_OUTPUT_PUBLISHED` when the first of several is done.

    Returns
    -------
    The snapshot of each output.

    Raises
    ------
    DeliveryError, LakehouseError: as `swap_content` raises them.
    """
    landed: dict[str, int] = {}
    for one in exchanged:
        landed[one.output.output] = swap_content(catalog, content_of(one))
        if len(landed) < len(exchanged):
            reached(CrashPoint.FIRST_OUTPUT_PUBLISHED)
    return landed


def content_of_shadow(catalog: Catalog, ledger: Ledger, refresh: RefreshObservation, mark: MarkPosition) -> ContentOf:
    """What the shadow has built. mark: the first one of the new generation."""

    def content_of(one: Exchanged) -> NewContent:
        shadow = require_table(catalog, one.built.target)
        files = live_files(shadow)

        def files_for(target: Table) -> tuple[DataFile, ...]:
            return _with_discards(one, fit_files(files, staging=shadow, target=target), target, ledger)

        return NewContent(
            output=one.output,
            files_for=files_for,
            key=swap_key(refresh),
            mark=mark,
            follows=(refresh.previous["generation"], refresh.previous["batch"]),
            tag=HeadTag(name=refresh.tag, keeps=refresh.keeps),
            way_out=f"Give it up (`sluice stream refresh {refresh.stream} --abandon`), and begin it again.",
        )

    return content_of


def content_before(catalog: Catalog, ledger: Ledger, refresh: RefreshObservation, mark: MarkPosition) -> ContentOf:
    """What the tables held before a refresh, as copies that were made already. mark: of the generation that opens."""

    def content_of(one: Exchanged) -> NewContent:
        copies = plan_copies(require_table(catalog, one.output.target), refresh)
        return NewContent(
            output=one.output,
            files_for=lambda target: _with_discards(one, [copy.as_data_file() for copy in copies], target, ledger),
            key=f"{swap_key(refresh)}/back",
            mark=mark,
            follows=None,
            way_out="Repeat the command: it copies what is missing again.",
        )

    return content_of


def _with_discards(one: Exchanged, files: Sequence[DataFile], target: Table, ledger: Ledger) -> tuple[DataFile, ...]:
    if one.output.output != QUARANTINE_OUTPUT:
        return tuple(files)
    stream = one.output.stream
    present = PresentSource.of_newest(ledger, stream)
    return keep_discards(files, target=target, stream=stream, is_of_another=present.had_another)


def settle_refresh(catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration) -> RefreshObservation | None:
    """Record what the tables show of an unsettled refresh, after what has followed its first commit is completed.

    Returns
    -------
    The refresh as it is recorded now; none when the stream has none that is unsettled.

    Raises
    ------
    MarkError, LakehouseError, LedgerError: when a mark, a table or the ledger cannot be read.
    DeliveryError: when the table of a later output cannot be exchanged.
    """
    refresh = unsettled_refresh(ledger, declaration.stream)
    if refresh is None:
        return None
    first, *others = exchanged_outputs(declaration, refresh)
    target = require_table(catalog, first.output.target)
    mark = read_mark(target, stream=first.output.stream, output=first.output.output)
    if mark is None or mark.generation != refresh.opens:
        return refresh
    is_back = refresh.state is RefreshState.TAKING_BACK
    content_of = content_before if is_back else content_of_shadow
    later = exchange_all(catalog, tuple(others), content_of(catalog, ledger, refresh, mark.at))
    snapshot_ids = {first.output.output: mark.snapshot_id, **later}
    if is_back:
        return record_taken_back(ledger, refresh.number, batch=mark.batch, snapshot_ids=snapshot_ids)
    rows = rows_at(target, mark.snapshot_id)
    return record_swap(ledger, refresh.number, batch=mark.batch, snapshot_ids=snapshot_ids, rows=rows)


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
