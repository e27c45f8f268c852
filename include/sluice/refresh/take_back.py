"""Takes a refresh back: the earlier content returns in one commit, and the stream continues from where it was before.

The rows that were published since the refresh disappear with it; the stream reads them again from where it was before.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import Event, EventAction
from sluice.ledger.refreshes import (
    RefreshObservation,
    RefreshState,
    begin_taking_back,
    end_refresh,
    newest_refresh,
    record_taken_back,
)
from sluice.maintenance.pin_commit import commit_pins
from sluice.publication.chain import MarkPosition
from sluice.publication.mark_moves import take_over
from sluice.publication.seen_tokens import with_raised_token
from sluice.refresh.observe_refresh import refreshed_output
from sluice.refresh.old_content import CopyOfFile, copy_files, plan_copies
from sluice.refresh.refresh_steps import ReachedStep, RefreshStep, unnoticed_step
from sluice.refresh.settle_refresh import settle_refresh
from sluice.refresh.shadow_stream import drop_shadow
from sluice.refresh.stopped_stream import stopped_stream
from sluice.refresh.swap_content import NewContent, swap_content
from sluice.supervision.supervision_events import command_event
from sluice.tables.declared_tables import require_table


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """What taking a refresh back brings: so many rows and files of the table before it."""

    refresh: RefreshObservation
    target: str
    rows: int
    files: int
    copied_bytes: int


def plan_way_back(catalog: Catalog, ledger: Ledger, stream: LoadedStream) -> WayBack:
    """What `take_back` would do now. Nothing is changed.

    Raises
    ------
    UsageError: when the newest refresh cannot be taken back: there is none, or its earlier content is gone.
    LakehouseError, LedgerError: when the table or the ledger cannot be read.
    """
    refresh = _taken_back(ledger, stream)
    return _way_back(stream, refresh, plan_copies(require_table(catalog, _target(stream)), refresh))


def take_back(
    catalog: Catalog,
    ledger: Ledger,
    stream: LoadedStream,
    *,
    asked_by: str,
    reached: ReachedStep = unnoticed_step,
) -> RefreshObservation:
    """Take the newest refresh of a stream back. A second try completes a first one.

    Raises
    ------
    UsageError: as `plan_way_back`, or when the stream was reset since.
    RunAlreadyLiveError: when the live run does not end in time.
    DeliveryError, LakehouseError, LedgerError: when the table cannot be changed, or the ledger cannot be reached.
    """
    settled = settle_refresh(catalog, ledger, stream.declaration) or newest_refresh(ledger, stream.name)
    if settled is not None and settled.state is RefreshState.TAKEN_BACK and settled.ended_at is None:
        return _ended(catalog, ledger, stream, settled)
    refresh = _taken_back(ledger, stream)
    target = require_table(catalog, _target(stream))
    copies = plan_copies(target, refresh)
    copy_files(target.io, copies)
    reached(RefreshStep.COPIED)
    what = f"taking back refresh {refresh.number}"
    with stopped_stream(ledger, stream.name, requested_by=asked_by, what=what) as run:
        token = with_raised_token(run, stream.declaration, ledger=ledger, catalog=catalog).token
        reached(RefreshStep.STOPPED)
        back = _exchange(catalog, ledger, stream, refresh, copies, token=token, asked_by=asked_by, reached=reached)
        reached(RefreshStep.RECORDED)
    return _ended(catalog, ledger, stream, back)


def _taken_back(ledger: Ledger, stream: LoadedStream) -> RefreshObservation:
    newest = newest_refresh(ledger, stream.name)
    if newest is None:
        raise UsageError(f"{stream.name} was never refreshed: there is nothing to take back.")
    if newest.state is not RefreshState.TAKING_BACK and not newest.can_be_taken_back(database_time(ledger)):
        until = newest.keeps_until
        kept = "" if until is None else f", and its earlier content was kept until {until:%Y-%m-%d %H:%M %Z}"
        raise UsageError(
            f"Refresh {newest.number} of {stream.name} is {newest.state}{kept}: there is nothing to take back."
        )
    return newest


def _exchange(
    catalog: Catalog,
    ledger: Ledger,
    stream: LoadedStream,
    refresh: RefreshObservation,
    copies: tuple[CopyOfFile, ...],
    *,
    token: int,
    asked_by: str,
    reached: ReachedStep,
) -> RefreshObservation:
    output, previous = refreshed_output(stream.declaration), refresh.previous
    take_over(catalog, output, token=token)
    opening = begin_taking_back(ledger, refresh.number, event=_event(stream, refresh, asked_by))
    reached(RefreshStep.TAKING_BACK)
    assert opening.opens is not None  # noqa: S101  # `begin_taking_back` sets it
    content = NewContent(
        output=output,
        files_for=lambda _: tuple(one.as_data_file() for one in copies),
        key=f"{stream.name}/refresh/{refresh.number}/back",
        mark=MarkPosition(
            generation=opening.opens,
            batch=previous["batch"],
            token=token,
            end_offsets_digest=previous["end_offsets_digest"],
        ),
        follows=None,
    )
    landed = swap_content(catalog, content)
    reached(RefreshStep.COMMITTED)
    ids = {output.output: landed}
    return record_taken_back(ledger, refresh.number, batch=previous["batch"], snapshot_ids=ids)


def _ended(catalog: Catalog, ledger: Ledger, stream: LoadedStream, refresh: RefreshObservation) -> RefreshObservation:
    """Free what the old content took: its copies are in the table."""
    drop_shadow(catalog, stream, refresh)
    target = require_table(catalog, _target(stream))
    if refresh.tag in target.refs():
        commit_pins(target, to_set=(), to_remove=(refresh.tag,), properties={})
    return end_refresh(ledger, refresh.number)


def _way_back(stream: LoadedStream, refresh: RefreshObservation, copies: tuple[CopyOfFile, ...]) -> WayBack:
    return WayBack(
        refresh=refresh,
        target=_target(stream),
        rows=sum(one.original.record_count for one in copies),
        files=len(copies),
        copied_bytes=sum(one.original.file_size_in_bytes for one in copies),
    )


def _target(stream: LoadedStream) -> str:
    return refreshed_output(stream.declaration).target


def _event(stream: LoadedStream, refresh: RefreshObservation, asked_by: str) -> Event:
    return command_event(
        EventAction.TAKE_BACK,
        stream.name,
        by=asked_by,
        explanation=f"Refresh {refresh.number} is taken back: the earlier content returns.",
        evidence={"refresh": refresh.number, "leaves": refresh.opens, "returns_to": dict(refresh.previous)},
    )
