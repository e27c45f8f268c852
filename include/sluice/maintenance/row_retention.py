"""Decides which rows of a table go because they are old, by the bounds of its data files. Pure.

A file goes as a whole, once its newest row is old: that needs neither an engine nor a look into a data file. The table
is partitioned by the time of its rows, so that no file holds the rows of two partitions, whatever compaction does: a
row goes at the latest when the youngest one of its partition is old.

A stream that reads the table gets what was appended, from the snapshots that appended it, and these stay until it has
read them. Nevertheless a file stays until every reader has read it: a reader that has to begin again finds the row, and
no other program that expires snapshots can take it from under a reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sluice.declarations.maintenance_declaration import RetentionDeclaration
from sluice.declarations.scalar_types import duration_words
from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.pin_plan import PinKind, PinPlan, ReaderObservation
from sluice.maintenance.step_decision import (
    SECONDS_OF_A_FILE,
    StepAction,
    StepDecision,
    StepReason,
    held,
    skipped,
)
from sluice.sources.iceberg_positions import StreamOffset, TableStep, history_read_by
from sluice.stored_keys import PIN_PREFIX
from sluice.tables.table_observation import ReferenceObservation, RemovedRows, TableObservation

COLUMN, BEFORE, READ_UP_TO, AGREED, OLD_ROWS = "column", "before", "read_up_to", "agreed", "old_rows"
"""The options of the step: the column, the time before which rows are old, the newest sequence number of files that
every reader has read (unset where no stream reads the table), the age to which a person has agreed, and how many rows
go."""

ARRIVED_BEFORE = "arrived_before"
"""One more: the time before which a file has to be committed."""

ARRIVAL_GRACE = timedelta(days=1)
"""How long old rows stay after they have arrived. A sender that gives its times in a wrong unit, and a late replay,
bring rows that are old at once: a person has a day to see them."""

MOST_SHARE = 0.9
"""Of all rows of a table; a removal of more waits for a person each time: so it looks where a clock is far ahead, where
a time is written wrongly, or where nothing arrives any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFiles:
    """What the bounds of a table's data files say of its old rows.

    before: rows are old whose time in `column` is earlier.
    files, rows, data_bytes: of the files that go. partitions: the number of these, by their partition as a path.
    unread: the files that would go, and that a reader has not read yet. mixed: those that hold old and other rows.
    more, more_rows: old ones beyond the most that one commit removes, and their rows.
    unbounded: those without bounds of the column, of which it is not known whether they are old.
    has_column: whether the table has the column, as a date or a time.
    fresh: those that would go, and that have arrived too lately. read_up_to, arrived_before: as of the options.
    """

    column: str
    before: datetime
    files: int = 0
    rows: int = 0
    data_bytes: int = 0
    partitions: Counter[str] = field(default_factory=Counter)
    unread: int = 0
    mixed: int = 0
    fresh: int = 0
    more: int = 0
    more_rows: int = 0
    unbounded: int = 0
    has_column: bool = True
    read_up_to: int | None = None
    arrived_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRetention:
    """What decides about the old rows of a table.

    old: unset where they were not looked for. stopping: a sentence for each reader that would stop where rows are
    removed, or of which that is unknown. waits_for: what has to end before rows may go; empty for nothing.
    format_version: of the table. rows: in all its files. earlier: what it says of rows that it has removed before.
    agreed: the retention to which a person agrees now, who has seen what goes; unset for none.
    """

    old: OldFiles | None = None
    stopping: tuple[str, ...] = ()
    waits_for: str = ""
    format_version: int = 2
    rows: int = 0
    earlier: RemovedRows | None = None
    agreed: RetentionDeclaration | None = None


NO_RETENTION = RowRetention()


def read_up_to(
    readers: Iterable[ReaderObservation],
    *,
    history: Sequence[TableStep],
    numbers: Mapping[int, int],
    kept: Collection[int] = (),
) -> int | None:
    """The newest sequence number of the files that every reader has read; none where no stream reads the table.

    Parameters
    ----------
    readers: whose positions are known. history: of main, newest first.
    numbers: the sequence numbers of the table's snapshots, by their id.
    kept: the snapshots at which readers stand of which no more is known.
    """
    bounds = [_read_by(reader.offset or _whole_of(reader.position), history, numbers) for reader in readers]
    bounds += [numbers.get(snapshot_id, 0) - 1 for snapshot_id in kept]
    newest = min(bounds, default=None)
    return _NOTHING if newest == 0 else newest  # all files of format version 1 have 0, whoever has read them


_NOTHING = -1
"""Before the sequence number of any file."""


def _whole_of(position: int | None) -> StreamOffset:
    return StreamOffset(snapshot_id=-1 if position is None else position, position=0, scan_all_files=False)


def _read_by(offset: StreamOffset, history: Sequence[TableStep], numbers: Mapping[int, int]) -> int:
    """The newest sequence number that a reader at an offset has read: 0 where it has read nothing for sure. One that
    has not read all files of a table in its first batches has not read the old ones either."""
    at = next((step for step in history if step.snapshot_id == offset.snapshot_id), None)
    if at is None:
        return 0
    if not at.is_read_by(offset):
        return 0 if offset.scan_all_files else numbers.get(at.snapshot_id, 0) - 1
    read = history_read_by(history, offset)
    return numbers.get(read[0].snapshot_id, 0) if read else 0


def stands_at(
    references: Iterable[ReferenceObservation], streams: Collection[str], *, besides: Collection[tuple[str, str]] = ()
) -> Iterator[tuple[str, ReferenceObservation]]:
    """Where streams stand in a table by their own tags, with the name of each.

    Parameters
    ----------
    streams: those whose tags are respected. besides: streams and inputs whose positions are known otherwise.
    """
    for one in references:
        parts = one.name.removeprefix(PIN_PREFIX).split("__")
        if not one.name.startswith(PIN_PREFIX) or len(parts) != 3 or parts[2] != PinKind.POSITION:
            continue
        if parts[0] in streams and (parts[0], parts[1]) not in besides:
            yield parts[0], one


def decide_row_retention(policy: RetentionDeclaration | None, seen: RowRetention, pins: PinPlan) -> StepDecision:
    """Decide whether files with old rows alone are removed from a table.

    Parameters
    ----------
    pins: of the table; what holds its expiry holds this, too.
    """
    step = MaintenanceStep.REMOVE_OLD_ROWS
    old = seen.old
    if policy is None or policy.older_than is None or old is None:
        return skipped(step, StepReason.NOT_DECLARED, _undeclared(policy))
    if seen.format_version != 2:
        why = (
            f"rows are old, and the table has format version {seen.format_version}; Sluice writes version 2: turn the "
            "retention off, and delete them by Spark"
        )
        return _refused(StepReason.FORMAT_VERSION, why) if old.files else _none(old, policy)
    if not old.files and not old.unread:
        return _none(old, policy)
    if seen.stopping:
        return _refused(StepReason.READER_STOPS, "; ".join(seen.stopping))
    if pins.holds:
        return held(step, pins.holds)
    if seen.waits_for:
        return skipped(step, StepReason.READERS_BEHIND, f"old rows wait: {seen.waits_for}")
    if not old.files:
        return skipped(
            step, StepReason.READERS_BEHIND, f"{_count(old.unread)} of old rows are not read by every stream"
        )
    if seen.earlier is not None and seen.earlier.column != old.column:
        first = seen.earlier.column
        why = f"rows of the table were removed by {first}, and it says of one column alone what has gone"
        return _refused(StepReason.NOT_AGREED, f"{why}: declare the retention by {first}, or turn it off")
    agreed = _agreed(policy.older_than, old, seen, is_here=seen.agreed == policy)
    if isinstance(agreed, str):
        why = f"{_sentence(old)}; {agreed}: see the plan and agree by `sluice table maintain`"
        return _refused(StepReason.NOT_AGREED, why)
    return StepDecision(
        step=step,
        action=StepAction.RUN,
        reason=StepReason.OLD_ROWS,
        explanation=_sentence(old),
        options={
            COLUMN: old.column,
            BEFORE: old.before,
            READ_UP_TO: old.read_up_to,
            AGREED: agreed,
            ARRIVED_BEFORE: old.arrived_before,
            "old_files": old.files + old.more,
            OLD_ROWS: old.rows + old.more_rows,
            "old_bytes": old.data_bytes,
        },
        gain=old.files,
        cost_seconds=old.files * SECONDS_OF_A_FILE,
    )


def _undeclared(policy: RetentionDeclaration | None) -> str:
    if policy is not None and policy.older_than is not None and policy.column is None:
        return "an age of old rows is declared for the table, but no column by which it is partitioned"
    return "the table declares no retention of rows"


def _agreed(older_than: timedelta, old: OldFiles, seen: RowRetention, *, is_here: bool) -> timedelta | str:
    """The age to which a person has agreed, or what a person has not agreed to yet.

    Parameters
    ----------
    is_here: whether a person agrees now.
    """
    earlier = seen.earlier
    if is_here:
        return older_than
    if earlier is None or earlier.agreed is None:
        return "no person has agreed yet that rows of this table go"
    if older_than < earlier.agreed:
        agreed = duration_words(earlier.agreed)
        return f"a person has agreed to {agreed}, and {duration_words(older_than)} are declared"
    if old.rows + old.more_rows > MOST_SHARE * seen.rows:
        return f"these are more than {MOST_SHARE:.0%} of the {seen.rows:,} rows of the table"
    return earlier.agreed


def removal_notes(steps: Iterable[StepDecision], lookups: Iterable[str]) -> Iterator[str]:
    """What a person should know before old rows go.

    Parameters
    ----------
    lookups: the streams that look the table up as it is at each batch.
    """
    if any(one.reason in (StepReason.OLD_ROWS, StepReason.NOT_AGREED) for one in steps):
        yield from (f"{stream} looks the table up, and finds no match any more for old rows" for stream in lookups)


def left_after(seen: TableObservation, decision: StepDecision, retention: RowRetention) -> TableObservation:
    """The table without the partitions of which every file goes: nothing else is to be done for those."""
    old = retention.old
    if decision.action is not StepAction.RUN or old is None:
        return seen
    left = tuple(one for one in seen.partitions if old.partitions[one.partition] < one.data_files)
    return replace(seen, partitions=left)


def _none(old: OldFiles, policy: RetentionDeclaration) -> StepDecision:
    kept = "" if policy.older_than is None else duration_words(policy.older_than)
    mixed = f"; {_count(old.mixed)} with older rows beside others stay until all are old" if old.mixed else ""
    no = "no file" if not old.fresh else f"besides {_count(old.fresh)} that arrived less than a day ago, no file"
    why = f"{no} holds only rows whose {old.column} is more than {kept} ago{mixed}{_unbounded(old)}"
    if not old.has_column:
        why = f"the table has no date or time {old.column} yet: `sluice table create` changes it to its declaration"
    return skipped(MaintenanceStep.REMOVE_OLD_ROWS, StepReason.NO_OLD_ROWS, why)


def _sentence(old: OldFiles) -> str:
    before = f"{old.before:%Y-%m-%d %H:%M:%S} UTC"
    what = f"{_count(old.files)} with {old.rows:,} rows ({old.data_bytes:,} bytes)"
    said = [f"{what} hold only rows whose {old.column} is before {before}"]
    said += [f"{_count(old.mixed)} with older rows beside others stay until all are old"] if old.mixed else []
    said += [f"{_count(old.fresh)} more have arrived less than a day ago, and go after that"] if old.fresh else []
    said += [f"{_count(old.unread)} more wait for streams that have not read them"] if old.unread else []
    said += [f"{_count(old.more)} more with {old.more_rows:,} rows go in further commits"] if old.more else []
    return "; ".join(said) + _unbounded(old)


def _unbounded(old: OldFiles) -> str:
    """What keeps files for good: their writer counts no metrics of the column, or counts alone."""
    if not old.unbounded:
        return ""
    return (
        f"; {_count(old.unbounded)} have no bounds of {old.column} and stay: give the table the property "
        f"`write.metadata.metrics.column.{old.column}: full`, and rewrite them"
    )


def _count(files: int) -> str:
    return f"{files:,} files" if files != 1 else "1 file"


def _refused(reason: StepReason, why: str) -> StepDecision:
    step = MaintenanceStep.REMOVE_OLD_ROWS
    return StepDecision(step=step, action=StepAction.REFUSE, reason=reason, explanation=why)
