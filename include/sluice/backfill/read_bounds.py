"""How far a backfill reads each input: exactly as far as the stream had read it, or why that is impossible.

Of a topic, the end is the offset of the mark. The beginning is the first record that is left, and the declared start of
the input. An input that is read by the time of its records begins with the first one of the interval and its margin.

Kafka removes old records. What was removed would be missing in the interval, so it is proved that nothing was: the
first record of a partition is still there, or one that is older than what is read. Records may be out of order by their
times; the declared margin has to cover that. A compacted topic loses records in its middle, so nothing is proved of it.

Known limitation: a topic that was compacted earlier and is not any more counts as whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sluice.backfill.intervals import Interval
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.declarations.source_declarations import RECORD_TIME, KafkaSource
from sluice.sources.topic_starts import compacted_topics
from sluice.tables.table_observation import RemovedRows

if TYPE_CHECKING:
    from sluice.sources.kafka_topics import KafkaTopics

_COMPACTED_WAY_OUT = (
    "Keep every record in a table: let one stream append the topic to it, and backfill a stream that reads that table."
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Kafka takes earlier times for special offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionObservation:
    """What is known of a partition.

    first: the offset of the oldest record that is left. oldest: the time of that record; unset when none is left.
    since: the offset of the first record since the time from which is read; unset when no time bounds it.
    end: the offset of its next record. read: the offset up to which the stream has read.
    """

    first: int
    oldest: datetime | None
    since: int | None
    end: int
    read: int


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


def is_by_record_time(source: KafkaSource, column: str | None) -> bool:
    """Whether a column by which an interval is read is the time of the record, and no column of its value."""
    declared = source.value.columns if source.value is not None else ()
    return column == RECORD_TIME and all(one.name != RECORD_TIME for one in declared)


def bound_of_topics(
    offset: object, topics: KafkaTopics, source: KafkaSource, *, input_name: str, column: str | None, wide: Interval
) -> TopicBound:
    """The records that a stream has read, from its end offset.

    Parameters
    ----------
    offset: of the newest published batch, as Spark's Kafka source writes it: topic → partition → next offset.
    wide: the interval with its margin.

    Raises
    ------
    LakehouseError: when Kafka does not answer.
    """
    by_time = is_by_record_time(source, column)
    if not isinstance(offset, Mapping) or not offset:
        problem = "the stream has read nothing of its topics yet."
        return TopicBound(input=input_name, column=column, is_by_record_time=by_time, problem=problem)
    since = _since(source, wide if by_time else None)
    sights = _observe(offset, topics, since)
    compacted = topics.compacted_among(offset)
    return plan_topic_bound(sights, source, input_name=input_name, column=column, since=since, compacted=compacted)


def _observe(
    offset: Mapping[str, Mapping[str, int]], topics: KafkaTopics, since: datetime | None
) -> Mapping[str, Mapping[int, PartitionObservation]]:
    partitions = {topic: sorted(int(number) for number in read) for topic, read in offset.items()}
    bounds = topics.bounds_of(partitions, isolation="read_uncommitted")
    oldest = topics.oldest_times_of(partitions)
    found = topics.offsets_since(partitions, since) if since is not None else None
    return {
        topic: {
            number: PartitionObservation(
                first=bounds[topic][number].first,
                oldest=oldest[topic][number],
                since=found[topic][number] if found is not None else None,
                end=bounds[topic][number].end,
                read=int(offset[topic][str(number)]),
            )
            for number in numbers
        }
        for topic, numbers in partitions.items()
    }


def plan_topic_bound(
    sights: Mapping[str, Mapping[int, PartitionObservation]],
    source: KafkaSource,
    *,
    input_name: str,
    column: str | None,
    since: datetime | None,
    compacted: Collection[str] = (),
) -> TopicBound:
    """Decide which records are read, and whether all of them are left.

    Parameters
    ----------
    since: the time from which is read; unset when no time bounds it.
    compacted: the topics from whose middle records are removed.
    """
    by_time = is_by_record_time(source, column)
    problems = [*compacted_topics(compacted), *_problems(sights, source, since)]
    removed = [one.oldest for partitions in sights.values() for one in partitions.values() if one.first > 0]
    known = [one for one in removed if one is not None]
    complete_after = max(known) if by_time and known else None
    return TopicBound(
        input=input_name,
        column=column,
        is_by_record_time=by_time,
        complete_after=complete_after,
        ranges=_ranges(sights, source),
        everything=_everything(sights, source, input_name) if by_time else None,
        has_lost_records=bool(removed),
        problem=f"{'; '.join(problems)}." if problems else "",
        is_gone=bool(problems),
        way_out=_COMPACTED_WAY_OUT
        if compacted
        else _way_out(input_name, by_time=by_time, complete_after=complete_after)
        if problems
        else "",
    )


def _since(source: KafkaSource, wide: Interval | None) -> datetime | None:
    """The time from which is read: of the interval, and not before the declared start."""
    times = [source.starting] if isinstance(source.starting, datetime) else []
    times += [wide.start] if wide is not None else []
    return max(_EPOCH, *times) if times else None


def _declared(source: KafkaSource, topic: str, partition: int) -> int:
    """The declared first offset of a partition; 0 when there is none."""
    offsets = source.starting if isinstance(source.starting, dict) else {}
    return max(0, offsets.get(topic, {}).get(partition, 0))


def _everything(
    sights: Mapping[str, Mapping[int, PartitionObservation]], source: KafkaSource, input_name: str
) -> TopicBound | None:
    """All records that are left of those that the stream has read. From which offset on these are is not known of a
    stream that begins with a time."""
    if isinstance(source.starting, datetime) or any(
        one.end < one.read for partitions in sights.values() for one in partitions.values()
    ):
        return None
    unbounded = {
        topic: {number: replace(one, since=None) for number, one in partitions.items()}
        for topic, partitions in sights.items()
    }
    return TopicBound(input=input_name, ranges=_ranges(unbounded, source))


def _ranges(
    sights: Mapping[str, Mapping[int, PartitionObservation]], source: KafkaSource
) -> Mapping[str, Mapping[int, OffsetRange]]:
    return {
        topic: {number: _range(one, _declared(source, topic, number)) for number, one in partitions.items()}
        for topic, partitions in sights.items()
    }


def _range(one: PartitionObservation, declared: int) -> OffsetRange:
    since = one.first if one.since is None else one.since if one.since >= 0 else one.read
    return OffsetRange(first=min(max(one.first, declared, since), one.read), end=one.read)


def _problems(
    sights: Mapping[str, Mapping[int, PartitionObservation]], source: KafkaSource, since: datetime | None
) -> Iterator[str]:
    for topic, partitions in sights.items():
        for number, one in partitions.items():
            place, is_older = f"{topic}/{number}", since is not None and one.oldest is not None and one.oldest < since
            if one.end < one.read:
                yield f"{place} ends with offset {one.end}, and the stream has read up to {one.read}: it is another one"
            elif one.first > _declared(source, topic, number) and not is_older:
                yield (
                    f"no record of {place} is left; those before offset {one.first} were removed"
                    if one.oldest is None
                    else f"the oldest record of {place} that is left has offset {one.first} and is of "
                    f"{one.oldest:%Y-%m-%d %H:%M:%S} UTC; those before it were removed"
                )


def _way_out(input_name: str, *, by_time: bool, complete_after: datetime | None) -> str:
    if not by_time:
        return f"To read by the time of records, declare `reads: {{{input_name}: {RECORD_TIME}}}` with a `margin`."
    if complete_after is None:
        return "Keep records longer in the topic, or in a table of their own."
    return f"Choose an interval that begins, with its margin, after {complete_after:%Y-%m-%d %H:%M:%S} UTC."
