"""How far a backfill reads each input: exactly as far as the stream had read it, or why that is impossible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.tables.removed_rows import RemovedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBound:
    """How far an input is read.

    column: the column by which only the interval and its margin are read; unset when all is read.
    returning: the batches that a person rejected, and whose rows are read again, because nothing distinguishes them
        from others.
    problem: why it cannot be read so far, as a sentence. is_gone: whether a later batch of the stream cannot change
        that, because what the stream had read is gone or was written again. way_out: what can be done then.
    """

    input: str
    column: str | None = None
    returning: tuple[str, ...] = ()
    problem: str = ""
    is_gone: bool = False
    way_out: str = ""

    @property
    def what(self) -> str:
        """What is read, for a person."""
        return self.input

    def whole(self) -> InputBound | None:
        """All that is left of what the stream had read, without the column; none when it is not known what that is."""
        return replace(self, column=None)

    def longer(self) -> InputBound | None:
        """The same for reading a longer interval; none when what is left of that is not known."""
        return self

    @property
    def _with_returning(self) -> str:
        return f", with the rows of the rejected batches {', '.join(self.returning)}" if self.returning else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBound(InputBound):
    """An Iceberg table at a snapshot.

    has_lost_rows: whether a snapshot is known that has removed more rows than it brought, as those do which keep a
        table short. has_expired_history: whether snapshots are expired, so that it is unknown whether one of those has.
    complete_after: rows that are as young as this are still there; unset where the table removes no old rows.
    """

    table: str
    snapshot_id: int | None = None
    has_lost_rows: bool = False
    has_expired_history: bool = False
    complete_after: datetime | None = None

    @property
    def what(self) -> str:
        """What is read, for a person."""
        return f"{self.table} at snapshot {self.snapshot_id}{self._with_returning}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The records of a partition from `first` up to and without `end`."""

    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBound(InputBound):
    """Records of topics.

    ranges: by topic and partition. left_out: the parts of them that a person rejected.
    is_by_record_time: whether `column` is the record's own time.
    complete_after: with `is_by_record_time`, all records that are younger than this are still there; unset when none
        was removed.
    everything: with `is_by_record_time`, all records that are left of those that the stream has read; unset when it is
        not known which these are.
    has_lost_records: whether some were removed that the stream has read.
    """

    ranges: Mapping[str, Mapping[int, OffsetRange]] = field(default_factory=dict)
    left_out: Mapping[str, Mapping[int, tuple[OffsetRange, ...]]] = field(default_factory=dict)
    is_by_record_time: bool = False
    complete_after: datetime | None = None
    everything: TopicBound | None = None
    has_lost_records: bool = False

    def whole(self) -> InputBound | None:
        """All records that are left, without the column; none when it is not known which these are."""
        return self.everything if self.is_by_record_time else replace(self, column=None)

    def longer(self) -> InputBound | None:
        """All records that are left, where the offsets are those of an interval."""
        return self.everything if self.is_by_record_time else self

    @property
    def what(self) -> str:
        """What is read, for a person."""
        offsets = sum(one.end - one.first for partitions in self.ranges.values() for one in partitions.values())
        rejected = sum(
            one.end - one.first
            for partitions in self.left_out.values()
            for ranges in partitions.values()
            for one in ranges
        )
        without = f", without {rejected:,} of them that a person rejected" if rejected else ""
        return f"{offsets:,} offsets of {', '.join(sorted(self.ranges))}{without}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesBound(InputBound):
    """Files, by their URIs, each as it was listed for the plan."""

    files: Mapping[str, FileObservation] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """What is read, for a person."""
        return f"{len(self.files):,} files{self._with_returning}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortenedLookup:
    """A static input whose table is read as it is now, without the old rows that it had when batches looked it up."""

    input: str
    table: str
    removed: RemovedRows

    def __str__(self) -> str:
        return f"of {self.table} (input {self.input}), {self.removed}: what looks them up finds no match any more"
