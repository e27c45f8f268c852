"""Completes the commits of a refresh, or of its way back, and records what the tables show of it.

    the declared output ─► the quarantine ─► record

The mark of the declared output decides: when it is in the generation that the refresh opens, the refresh has landed,
and what follows is completed, also by another process, with files that lie there since before the first commit. No one
else opens the generation of a refresh that is not settled. Every run of a stream, and every command over its refreshes,
settles it first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from sluice.backfill.present_source import PresentSource
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.ledger.connection import Ledger
from sluice.ledger.refreshes import RefreshObservation, RefreshState, record_swap, record_taken_back, unsettled_refresh
from sluice.publication.chain import MarkPosition
from sluice.publication.checked_commit import HeadTag
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.file_preparation import fit_files
from sluice.publication.marks import read_mark
from sluice.publication.publish_batches import live_files
from sluice.refresh.kept_discards import keep_discards
from sluice.refresh.old_content import plan_copies
from sluice.refresh.shadow_stream import Exchanged, exchanged_outputs
from sluice.refresh.swap_content import NewContent, rows_at, swap_content, swap_key
from sluice.tables.declared_tables import require_table

ContentOf = Callable[[Exchanged], NewContent]
"""What a table is to hold."""


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
