"""Takes a refresh back after its swap, or gives it up before.

Taken back: the earlier content returns in one commit, and the stream continues from where it was before. The rows that
were published since the refresh disappear with it; the stream reads them again, and appends them again: a stream that
reads the appended rows of the table gets them twice, which a person has to allow. Given up: the table stays as it is,
and the shadow goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import Event, EventAction
from sluice.ledger.refreshes import (
    RefreshObservation,
    RefreshState,
    abandon_refresh,
    begin_taking_back,
    end_refresh,
    newest_refresh,
    record_taken_back,
)
from sluice.maintenance.position_pins import commit_pins
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.publication.chain import MarkPosition
from sluice.publication.command_runs import CommandMode, run_of_command
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.mark_moves import take_over
from sluice.publication.repair import with_raised_token
from sluice.publication.staged_batch import StagedOutput
from sluice.refresh.observe_refresh import refreshed_output
from sluice.refresh.settle_refresh import content_before, exchange_all, settle_refresh
from sluice.refresh.shadow_stream import drop_shadow, exchanged_outputs
from sluice.refresh.swap_content import CopyOfFile, copy_files, plan_copies, repeated_rows
from sluice.refresh.swap_shadow import stopped_stream
from sluice.supervision.supervision_values import command_event
from sluice.tables.declared_tables import require_table

_GIVEN_UP = (RefreshState.BUILDING, RefreshState.SWAPPING)


def plan_way_back(
    catalog: Catalog, ledger: Ledger, declarations: Declarations, stream: LoadedStream, *, allows_repeated: bool = False
) -> OperationPlan[RefreshObservation]:
    """What `take_back` would do now. Nothing is changed.

    Parameters
    ----------
    allows_repeated: whether readers of the table may get rows a second time.

    Raises
    ------
    UsageError: when the newest refresh cannot be taken back: there is none, or its earlier content is gone.
    LakehouseError, LedgerError: when the table or the ledger cannot be read.
    """
    newest = newest_refresh(ledger, stream.name)
    if newest is not None and _is_to_be_completed(newest, RefreshState.TAKEN_BACK):
        return _completion(OperationVerb.TAKE_BACK, newest)
    refresh = _taken_back(ledger, stream)
    return _plan_way_back(catalog, declarations, stream, refresh, allows_repeated=allows_repeated)


def _plan_way_back(
    catalog: Catalog,
    declarations: Declarations,
    stream: LoadedStream,
    refresh: RefreshObservation,
    *,
    allows_repeated: bool,
) -> OperationPlan[RefreshObservation]:
    outputs = [one.output for one in exchanged_outputs(stream.declaration, refresh)]
    old = {one.target: [copy.original for copy in _copies(catalog, one, refresh)] for one in outputs}
    repeated = [repeated_rows(catalog, declarations, one.target, refresh) for one in outputs]
    read_twice = [one for one in repeated if one.are_read]
    is_allowed = allows_repeated or refresh.state is RefreshState.TAKING_BACK  # a first try was allowed
    files = [file for of_table in old.values() for file in of_table]
    return OperationPlan(
        verb=OperationVerb.TAKE_BACK,
        subject=stream.name,
        part=f"refresh {refresh.number}",
        seen=refresh,
        steps=steps_of(
            *(_replacing(table, of_table, refresh) for table, of_table in old.items()),
            f"{stream.name} is stopped for the commit, and then reads again what it has read since.",
            *(one.sentence for one in read_twice if is_allowed),
        ),
        refusals=tuple(one.refusal(stream.name) for one in read_twice if not is_allowed),
        at_stake=Stake.ROWS,
        rows=_rows_in(old[outputs[0].target]),
        evidence={
            "table": outputs[0].target,
            "refresh": refresh.number,
            "leaves": refresh.opens,
            "rows": {table: _rows_in(of_table) for table, of_table in old.items()},
            "files": len(files),
            "copied_bytes": sum(file.file_size_in_bytes for file in files),
            "readers": [name for one in repeated for name in one.names],
        },
    )


def _replacing(table: str, files: Sequence[DataFile], refresh: RefreshObservation) -> str:
    size = sum(file.file_size_in_bytes for file in files)
    return (
        f"Replace all rows of {table} by the {_rows_in(files):,} rows from before refresh {refresh.number}, in one "
        f"commit; {len(files)} files with {size:,} bytes are copied for that."
    )


def _rows_in(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)


def _copies(catalog: Catalog, output: StagedOutput, refresh: RefreshObservation) -> tuple[CopyOfFile, ...]:
    return plan_copies(require_table(catalog, output.target), refresh)


def take_back(
    catalog: Catalog,
    ledger: Ledger,
    declarations: Declarations,
    stream: LoadedStream,
    *,
    asked_by: str,
    planned: str | None = None,
    allows_repeated: bool = False,
    reached: Reached = unnoticed,
) -> RefreshObservation:
    """Take the newest refresh of a stream back. A second try completes a first one.

    Parameters
    ----------
    planned: the digest of the plan that a person agreed to; unset: the refresh that is the newest now.
    allows_repeated: whether readers of the table may get rows a second time.

    Raises
    ------
    UnpublishableError: when readers would, and that is not allowed.
    UsageError: as `plan_way_back`, when it is not what was planned, or when the stream was reset since.
    RunAlreadyLiveError: when the live run does not end in time.
    DeliveryError, LakehouseError, LedgerError: when the table cannot be changed, or the ledger cannot be reached.
    """
    settled = settle_refresh(catalog, ledger, stream.declaration) or newest_refresh(ledger, stream.name)
    if settled is not None and _is_to_be_completed(settled, RefreshState.TAKEN_BACK):
        return _ended(catalog, ledger, stream, settled)
    refresh = _taken_back(ledger, stream)
    plan = _plan_way_back(catalog, declarations, stream, refresh, allows_repeated=allows_repeated)
    plan.require_same(planned)
    plan.require_unrefused()
    for one in exchanged_outputs(stream.declaration, refresh):
        copy_files(require_table(catalog, one.output.target).io, _copies(catalog, one.output, refresh))
    reached(CrashPoint.COPIED)
    what = f"taking back refresh {refresh.number}"
    with stopped_stream(ledger, stream.name, requested_by=asked_by, what=what) as run:
        token = with_raised_token(run, stream.declaration, ledger=ledger, catalog=catalog).token
        reached(CrashPoint.STOPPED)
        back = _exchange(catalog, ledger, stream, refresh, token=token, asked_by=asked_by, reached=reached)
        reached(CrashPoint.RECORDED)
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
    *,
    token: int,
    asked_by: str,
    reached: Reached,
) -> RefreshObservation:
    exchanged, previous = exchanged_outputs(stream.declaration, refresh), refresh.previous
    for one in exchanged:
        take_over(catalog, one.output, token=token)
    opening = begin_taking_back(ledger, refresh.number, event=_event(stream, refresh, asked_by))
    reached(CrashPoint.TAKING_BACK)
    assert opening.opens is not None  # noqa: S101  # `begin_taking_back` sets it
    mark = MarkPosition(
        generation=opening.opens,
        batch=previous["batch"],
        token=token,
        end_offsets_digest=previous["end_offsets_digest"],
    )
    landed = exchange_all(catalog, exchanged, content_before(catalog, ledger, opening, mark), reached=reached)
    reached(CrashPoint.COMMITTED)
    return record_taken_back(ledger, refresh.number, batch=previous["batch"], snapshot_ids=landed)


def _ended(catalog: Catalog, ledger: Ledger, stream: LoadedStream, refresh: RefreshObservation) -> RefreshObservation:
    """Free what the old content took: its copies are in the table."""
    drop_shadow(catalog, stream, refresh)
    for one in exchanged_outputs(stream.declaration, refresh):
        target = require_table(catalog, one.output.target)
        if refresh.tag in target.refs():
            commit_pins(target, to_set=(), to_remove=(refresh.tag,), properties={})
    return end_refresh(ledger, refresh.number)


def _is_to_be_completed(refresh: RefreshObservation, state: RefreshState) -> bool:
    """Whether a first try has decided it, and was interrupted before it had freed what the refresh took."""
    return refresh.state is state and refresh.ended_at is None


def _completion(verb: OperationVerb, refresh: RefreshObservation) -> OperationPlan[RefreshObservation]:
    sentence = f"Refresh {refresh.number} of {refresh.stream} is {refresh.state} already: what is left of it is freed."
    return OperationPlan(
        verb=verb,
        subject=refresh.stream,
        part=f"refresh {refresh.number}",
        seen=refresh,
        steps=steps_of(sentence),
        evidence={"refresh": refresh.number, "state": refresh.state},
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


def plan_abandoning(ledger: Ledger, stream: LoadedStream) -> OperationPlan[RefreshObservation]:
    """What `abandon` would do now. Nothing is changed.

    Raises
    ------
    UsageError: when there is none.
    """
    seen = newest_refresh(ledger, stream.name)
    if seen is not None and _is_to_be_completed(seen, RefreshState.ABANDONED):
        return _completion(OperationVerb.ABANDON_REFRESH, seen)
    return _plan_abandoning(stream, seen)


def _plan_abandoning(stream: LoadedStream, seen: RefreshObservation | None) -> OperationPlan[RefreshObservation]:
    if seen is None or seen.state not in _GIVEN_UP:
        raise _nothing_to_give_up(stream, seen)
    steps = steps_of(
        f"Give up refresh {seen.number} of {seen.stream}, which is {seen.state}: what it has built is dropped.",
        f"{_target(stream)} stays as it is.",
    )
    return OperationPlan(
        verb=OperationVerb.ABANDON_REFRESH,
        subject=stream.name,
        part=f"refresh {seen.number}",
        seen=seen,
        steps=steps,
        at_stake=Stake.ROWS,
        evidence={"refresh": seen.number, "state": seen.state},
    )


def abandon(
    catalog: Catalog, ledger: Ledger, stream: LoadedStream, *, asked_by: str, planned: str | None = None
) -> RefreshObservation:
    """Give the newest refresh of a stream up. A second try completes a first one.

    Parameters
    ----------
    planned: the digest of the plan that a person agreed to; unset: the refresh that is the newest now.

    Raises
    ------
    UsageError: when there is none to give up, because it has landed, for example, or it is not what was planned.
    RunAlreadyLiveError: when its process still builds the shadow, or the live run of the stream does not end in time.
    DeliveryError, LakehouseError, LedgerError: when a table cannot be changed, or the ledger cannot be reached.
    """
    seen = settle_refresh(catalog, ledger, stream.declaration) or newest_refresh(ledger, stream.name)
    if seen is not None and _is_to_be_completed(seen, RefreshState.ABANDONED):
        return _cleared(catalog, ledger, stream, seen)
    plan = _plan_abandoning(stream, seen)
    plan.require_same(planned)
    seen = plan.seen
    what = f"giving up refresh {seen.number}"
    with run_of_command(ledger, seen.shadow, CommandMode.REFRESH, requested_by=asked_by, what=what):
        if seen.state is RefreshState.SWAPPING:
            seen = _fence_off(catalog, ledger, stream, seen, asked_by=asked_by, what=what)
        abandoned = abandon_refresh(ledger, seen.number, event=_abandoned_event(stream, seen, asked_by))
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
        for one in exchanged_outputs(stream.declaration, refresh):
            take_over(catalog, one.output, token=token)
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


def _abandoned_event(stream: LoadedStream, refresh: RefreshObservation, asked_by: str) -> Event:
    return command_event(
        EventAction.ABANDON_REFRESH,
        stream.name,
        by=asked_by,
        explanation=f"Refresh {refresh.number} is given up; the table stays as it is.",
        evidence={"refresh": refresh.number, "state": refresh.state},
    )
