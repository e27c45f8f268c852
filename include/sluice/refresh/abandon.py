"""Gives a refresh up before its swap: the table stays as it is, and the shadow goes."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Event, EventAction
from sluice.ledger.refreshes import RefreshObservation, RefreshState, abandon_refresh, end_refresh, newest_refresh
from sluice.publication.command_runs import CommandMode, run_of_command
from sluice.publication.mark_moves import take_over
from sluice.publication.repair import with_raised_token
from sluice.refresh.observe_refresh import refreshed_output
from sluice.refresh.settle_refresh import settle_refresh
from sluice.refresh.shadow_stream import drop_shadow
from sluice.refresh.stopped_stream import stopped_stream
from sluice.supervision.supervision_events import command_event

_GIVEN_UP = (RefreshState.BUILDING, RefreshState.SWAPPING)


def plan_abandoning(ledger: Ledger, stream: LoadedStream) -> RefreshObservation:
    """The refresh that `abandon` would give up. Nothing is changed.

    Raises
    ------
    UsageError: when there is none.
    """
    seen = newest_refresh(ledger, stream.name)
    if seen is None or seen.state not in _GIVEN_UP:
        raise _nothing_to_give_up(stream, seen)
    return seen


def abandon(catalog: Catalog, ledger: Ledger, stream: LoadedStream, *, asked_by: str) -> RefreshObservation:
    """Give the newest refresh of a stream up. A second try completes a first one.

    Raises
    ------
    UsageError: when there is none to give up, because it has landed, for example.
    RunAlreadyLiveError: when its process still builds the shadow, or the live run of the stream does not end in time.
    DeliveryError, LakehouseError, LedgerError: when a table cannot be changed, or the ledger cannot be reached.
    """
    seen = settle_refresh(catalog, ledger, stream.declaration) or newest_refresh(ledger, stream.name)
    if seen is not None and seen.state is RefreshState.ABANDONED and seen.ended_at is None:
        return _cleared(catalog, ledger, stream, seen)
    if seen is None or seen.state not in _GIVEN_UP:
        raise _nothing_to_give_up(stream, seen)
    what = f"giving up refresh {seen.number}"
    with run_of_command(ledger, seen.shadow, CommandMode.REFRESH, requested_by=asked_by, what=what):
        if seen.state is RefreshState.SWAPPING:
            seen = _fence_off(catalog, ledger, stream, seen, asked_by=asked_by, what=what)
        abandoned = abandon_refresh(ledger, seen.number, event=_event(stream, seen, asked_by))
        return _cleared(catalog, ledger, stream, abandoned)


def _fence_off(
    catalog: Catalog, ledger: Ledger, stream: LoadedStream, refresh: RefreshObservation, *, asked_by: str, what: str
) -> RefreshObservation:
    """Make sure that the commit of a refresh has not landed and never will.

    Raises
    ------
    UsageError: when it has landed.
    """
    with stopped_stream(ledger, stream.name, requested_by=asked_by, what=what) as run:
        token = with_raised_token(run, stream.declaration, ledger=ledger, catalog=catalog).token
        take_over(catalog, refreshed_output(stream.declaration), token=token)
        seen = settle_refresh(catalog, ledger, stream.declaration)
    if seen is None or seen.state is not RefreshState.SWAPPING:
        raise _nothing_to_give_up(stream, seen)
    return refresh


def _cleared(catalog: Catalog, ledger: Ledger, stream: LoadedStream, refresh: RefreshObservation) -> RefreshObservation:
    drop_shadow(catalog, stream, refresh)
    return end_refresh(ledger, refresh.number)


def _nothing_to_give_up(stream: LoadedStream, seen: RefreshObservation | None) -> UsageError:
    if seen is None:
        return UsageError(f"{stream.name} was never refreshed: there is nothing to give up.")
    return UsageError(
        f"Refresh {seen.number} of {stream.name} is {seen.state}: it cannot be given up.",
        next_step=f"What is swapped can be taken back: `sluice stream refresh {stream.name} --take-back`.",
    )


def _event(stream: LoadedStream, refresh: RefreshObservation, asked_by: str) -> Event:
    return command_event(
        EventAction.ABANDON_REFRESH,
        stream.name,
        by=asked_by,
        explanation=f"Refresh {refresh.number} is given up; the table stays as it is.",
        evidence={"refresh": refresh.number, "state": refresh.state},
    )
