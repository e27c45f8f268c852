"""The mark of an output on its target table, and how far the output is published there.

The mark is a table property and not history, so it survives the expiry of snapshots, compaction and any damage to a
checkpoint. It never moves unless main moves in the same commit, because only then the compare-and-swap on main protects
it. Spark's MERGE makes rows visible in a commit that cannot set the mark. A batch in main's history above the mark
therefore counts as published too.

When somebody has removed the property, the mark is found where it was: in the table's previous metadata, which the
catalog's metadata log names, or else in the history of main. The checkpoint does not say how far an output is
published: Spark commits a batch as soon as it is staged. A mark that main does not hold any more, because the table was
rolled back, waits until a person adopts the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.errors import DivergedError, MarkError, RolledBackError, UnpublishableError
from sluice.publication.chain import BEFORE_THE_FIRST_BATCH, MarkPosition, position_after
from sluice.publication.earlier_metadata import led_past, previous_properties
from sluice.publication.staged_batch import BatchSummary, StagedOutput, read_summary
from sluice.stored_keys import MARK_MOVE, MARK_POSITION, MARK_PROPERTY_PREFIX, OUTPUT, STREAM, TOKEN
from sluice.tables.declared_tables import require_table

UNNAMED_SOURCE = "source "
"""Begins the name of what has no input's: a further place where the query reads a source, as for each further output,
and a source that the declaration does not have any more. The number of its line follows."""


class Mark(BaseModel):
    """How far an output is published, as it is stored.

    It is JSON in a table property for as long as the table exists: fields may be added, never renamed. The first four
    fields are those of `MarkPosition`.

    snapshot_id, sequence_number: the snapshot of the target that set this mark.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    generation: int = Field(ge=1)
    batch: int = Field(ge=BEFORE_THE_FIRST_BATCH)
    token: int = Field(ge=0)
    end_offsets_digest: str | None = Field(None, alias="end-offsets-digest")
    snapshot_id: int = Field(alias="snapshot-id")
    sequence_number: int = Field(alias="sequence-number")

    @property
    def position(self) -> tuple[int, int]:
        """The order of marks: generation, then batch."""
        return (self.generation, self.batch)

    @property
    def at(self) -> MarkPosition:
        """The mark without the snapshot that set it."""
        return MarkPosition(
            generation=self.generation,
            batch=self.batch,
            token=self.token,
            end_offsets_digest=self.end_offsets_digest,
        )

    @classmethod
    def set_to(cls, position: MarkPosition, *, snapshot_id: int, sequence_number: int) -> Self:
        """The mark at a position, as the commit of a snapshot sets it."""
        return cls(
            generation=position.generation,
            batch=position.batch,
            token=position.token,
            end_offsets_digest=position.end_offsets_digest,
            snapshot_id=snapshot_id,
            sequence_number=sequence_number,
        )

    def text(self) -> str:
        """The value of the table property."""
        return self.model_dump_json(by_alias=True)


def marked_outputs(table: Table) -> tuple[StagedOutput, ...]:
    """Every output that has a mark on a loaded target, sorted by name."""
    names = sorted(name for name in table.properties if name.startswith(MARK_PROPERTY_PREFIX))
    pairs = [name.removeprefix(MARK_PROPERTY_PREFIX).partition(".") for name in names]
    return tuple(
        StagedOutput(stream=stream, output=output, target=".".join(table.name())) for stream, _, output in pairs
    )


def read_mark(table: Table, *, stream: str, output: str) -> Mark | None:
    """The mark of a stream's output on a loaded target; none when the stream never opened a generation there.

    Raises
    ------
    MarkError: when the property holds no mark, because another writer changed it.
    """
    name = StagedOutput(stream=stream, output=output, target=".".join(table.name())).mark_property
    text = table.properties.get(name)
    return None if text is None else parse_mark(text, name=name, table=".".join(table.name()))


def parse_mark(text: str, *, name: str, table: str) -> Mark:
    """The mark that a table property holds. name, table: of the property and its table, for messages.

    Raises
    ------
    MarkError: when the property holds no mark, because another writer changed it.
    """
    try:
        return Mark.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        raise MarkError(
            f"The property {name} of {table} is not a mark: {problem['msg']} (got {text[:200]!r}).",
            next_step="Remove the property: the next start of the stream restores it from the table's metadata log.",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A loaded target, and how far one output is published in it.

    table: the metadata from which everything else was read. A commit asserts that main has not moved since.
    mark: the mark of the table property; none before the first generation opened.
    merged: the newest batch above the mark that a MERGE made visible.
    merged_snapshot_id: the snapshot of that MERGE.
    """

    table: Table
    mark: Mark | None
    merged: BatchSummary | None = None
    merged_snapshot_id: int | None = None

    def position(self, output: StagedOutput) -> MarkPosition:
        """How far the output is published, merges included.

        Raises
        ------
        MarkError: when no generation was ever opened.
        """
        if self.mark is None:
            raise MarkError(
                f"{output.target} has no mark of {output}: no generation was opened, or the property "
                f"{output.mark_property} was removed.",
                next_step="Start the stream; it opens its generation, or restores the mark, before its first batch.",
            )
        if self.merged is None:
            return self.mark.at
        return position_after(self.merged, token=self.mark.token)

    @property
    def published_by(self) -> int | None:
        """The snapshot that made the newest batch visible, or set the mark; none before the first generation."""
        if self.merged_snapshot_id is not None:
            return self.merged_snapshot_id
        return self.mark.snapshot_id if self.mark is not None else None


def load_target_state(catalog: Catalog, output: StagedOutput) -> TargetState:
    """Load the target of an output and read how far the output is published.

    Raises
    ------
    LakehouseError: when it does not exist or cannot be loaded.
    DeliveryError: as `read_target_state` does.
    """
    return read_target_state(require_table(catalog, output.target), output)


def read_target_state(table: Table, output: StagedOutput) -> TargetState:
    """Read from a loaded target how far an output is published.

    Raises
    ------
    UnpublishableError: when staged delivery cannot write into the target.
    MarkError: when the mark cannot be read.
    RolledBackError: when main was rolled back or replaced behind the mark.
    DivergedError: when a batch of an older generation became visible after the mark.
    """
    refuse_unpublishable(table)
    mark = read_mark(table, stream=output.stream, output=output.output)
    return TargetState(table=table, mark=None) if mark is None else state_since(table, mark, output)


def state_since(table: Table, mark: Mark, output: StagedOutput) -> TargetState:
    """Read from a loaded target how far an output is published since a mark was set on it.

    Raises
    ------
    RolledBackError, DivergedError: as `read_target_state` does.
    """
    since = list(_since_mark(table, mark, output))
    for snapshot in since:  # the newest first
        merged = batch_of(snapshot, output)
        if merged is None:
            continue
        if merged.key.generation != mark.generation:
            raise DivergedError(
                f"Batch {merged.key} became visible in {output.target} after generation {mark.generation} had opened, "
                f"in snapshot {snapshot.snapshot_id}: a driver of another generation was still running.",
                next_step="Make sure that no old driver runs, then roll the table back to the snapshot before that.",
            )
        if merged.key.batch > mark.batch:
            return TargetState(table=table, mark=mark, merged=merged, merged_snapshot_id=snapshot.snapshot_id)
    return TargetState(table=table, mark=mark)


def entries_of(snapshot: Snapshot) -> Mapping[str, str]:
    """The entries of a snapshot's summary."""
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def batch_of(snapshot: Snapshot, output: StagedOutput) -> BatchSummary | None:
    """The batch of an output that a snapshot of its target made visible; none for the snapshots of others.

    Raises
    ------
    DeliveryError: when the summary cannot be read.
    """
    found = read_summary(entries_of(snapshot))
    is_own = found is not None and (found.key.stream, found.output) == (output.stream, output.output)
    return found if is_own else None


def history_of_main(table: Table) -> Iterator[Snapshot]:
    """The snapshots of main, newest first, as far as the metadata lists them."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None


def find_lost_mark(table: Table, output: StagedOutput, *, in_log: bool = True) -> MarkPosition | None:
    """How far an output was published when its mark was removed from a loaded target; none when it never had one.

    Parameters
    ----------
    in_log: whether the previous metadata is read, and not only the history of main.

    Raises
    ------
    RolledBackError, DivergedError: when main does not descend from the snapshot that set the mark.
    LakehouseError: when previous metadata cannot be read.
    """
    for properties in previous_properties(table) if in_log else ():
        text = properties.get(output.mark_property)
        if text is not None:
            mark = parse_mark(text, name=output.mark_property, table=output.target)
            return state_since(table, mark, output).position(output)
    return position_in_history(table, output)


def position_in_history(table: Table, output: StagedOutput) -> MarkPosition | None:
    """How far an output is published by the snapshots of main alone, whatever its mark says; none if none shows it."""
    return next((found for one in history_of_main(table) if (found := _moved_to(one, output)) is not None), None)


def _moved_to(snapshot: Snapshot, output: StagedOutput) -> MarkPosition | None:
    """Where the mark stood after a snapshot of main; none when the snapshot did not move it."""
    published = batch_of(snapshot, output)
    return moved_mark(snapshot, output) if published is None else position_after(published, token=published.token)


def moved_mark(snapshot: Snapshot, output: StagedOutput, *, why: str | None = None) -> MarkPosition | None:
    """Where a snapshot has moved a mark without publishing. why: the one reason that counts, a `MarkMove`."""
    entries = entries_of(snapshot)
    is_own = (entries.get(STREAM), entries.get(OUTPUT)) == (output.stream, output.output)
    if not is_own or MARK_MOVE not in entries or why not in (None, entries[MARK_MOVE]):
        return None
    generation, _, batch = entries.get(MARK_POSITION, "").partition(":")
    if not generation:
        return None  # a run fenced the others off; the batch that it stands at follows in the history
    return MarkPosition(
        generation=int(generation), batch=int(batch), token=int(entries[TOKEN]), end_offsets_digest=None
    )


def _since_mark(table: Table, mark: Mark, output: StagedOutput) -> Iterator[Snapshot]:
    """The snapshots of main after the one that set the mark, the newest first.

    When that snapshot is expired the walk ends where the history ends; so it does when a tag keeps that snapshot and
    others after it are expired. When the walk reaches an earlier snapshot without it, main was rolled back or replaced.
    """
    oldest = None
    snapshot = table.current_snapshot()
    if snapshot is None or _sequence_number(snapshot) < mark.sequence_number:
        raise _rolled_back(mark, output, "main ends before the snapshot that set the mark")
    while snapshot is not None and snapshot.snapshot_id != mark.snapshot_id:
        if _sequence_number(snapshot) <= mark.sequence_number:
            raise _rolled_back(mark, output, "the history of main skips the snapshot that set the mark")
        yield snapshot
        oldest, parent = snapshot, snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    if snapshot is None and oldest is not None and not _may_descend(table, mark, oldest):
        raise _rolled_back(mark, output, "main does not descend from the snapshot that set the mark")


def _may_descend(table: Table, mark: Mark, oldest: Snapshot) -> bool:
    """Whether the oldest reachable snapshot may descend from the one that set the mark, through expired ones."""
    if table.snapshot_by_id(mark.snapshot_id) is not None:
        return _is_cut_behind(table, oldest)
    return not led_past(table, oldest, snapshot_id=mark.snapshot_id, sequence_number=mark.sequence_number)


def _is_cut_behind(table: Table, oldest: Snapshot) -> bool:
    """Whether expiry removed what came right before the oldest reachable snapshot.

    A replaced table begins without a parent as well, and what it replaced is still listed right before it. The parent
    itself is no evidence: pyiceberg's expiry removes it from what it keeps.
    """
    before = _sequence_number(oldest) - 1
    return all(_sequence_number(listed) != before for listed in table.snapshots())


def _sequence_number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _rolled_back(mark: Mark, output: StagedOutput, reason: str) -> RolledBackError:
    return RolledBackError(
        f"{output.target} was rolled back or replaced behind the mark of {output} (generation {mark.generation}, batch "
        f"{mark.batch}, snapshot {mark.snapshot_id}): {reason}. Nothing is published.",
        next_step=f"If it was a mistake: `sluice table adopt {output.target} --undo`. If it was meant: `--reread` "
        "reads the rows again that were taken out, `--accept` leaves them out. `--dry-run` shows what each does.",
    )


def refuse_unpublishable(target: Table) -> None:
    """Refuse a target into which staged delivery cannot publish.

    Raises
    ------
    UnpublishableError: with the reason and the alternative.
    """
    version = target.metadata.format_version
    if version != 2:
        raise UnpublishableError(
            f"The table {'.'.join(target.name())} has format version {version}; publication writes version 2.",
            next_step="Declare `delivery: direct` for this output, or write into a table of version 2.",
        )


ADOPT = "sluice table adopt {table} --undo --dry-run"
"""The command that shows what can become of such a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBackMark:
    """A mark that main does not hold any more. problem: in the words of publication."""

    output: StagedOutput
    mark: Mark
    problem: str

    @property
    def at(self) -> MarkPosition:
        """Where the mark stands."""
        return self.mark.at


def rolled_back_marks(table: Table) -> tuple[RolledBackMark, ...]:
    """The marks on a loaded table that main does not hold any more, by the names of their outputs.

    Raises
    ------
    MarkError, DivergedError: when a mark cannot be read, or shows another fault that comes first.
    """
    return tuple(found for output in marked_outputs(table) if (found := _found_rolled_back(table, output)) is not None)


def _found_rolled_back(table: Table, output: StagedOutput) -> RolledBackMark | None:
    mark = read_mark(table, stream=output.stream, output=output.output)
    if mark is None:
        return None
    try:
        state_since(table, mark, output)
    except RolledBackError as error:
        return RolledBackMark(output=output, mark=mark, problem=error.message)
    return None
