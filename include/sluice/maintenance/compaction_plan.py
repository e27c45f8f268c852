"""Decides which files of a table are written together into fewer ones, and by whom, and divides a compaction by Spark
into calls, each of some partitions, and one commit. Pure.

Iceberg commits in parts by itself, too, with its option `partial-progress.enabled`. But then it only logs the commits
that fail, reports none of their files, and takes fewer commits than were allowed for failed ones; so nothing says what
a compaction has left undone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil

from sluice.declarations.maintenance_declaration import CompactionDeclaration, MaintenanceDeclaration
from sluice.declarations.scalar_types import duration_words
from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.step_decision import (
    SECONDS_OF_A_FILE,
    SECONDS_OF_A_MEBIBYTE,
    SPARK_SECONDS,
    SPARK_SECONDS_OF_A_MEBIBYTE,
    RewriteCall,
    StepAction,
    StepDecision,
    StepReason,
    skipped,
)
from sluice.tables.manifest_reading import any_of
from sluice.tables.table_observation import PartitionObservation, TableObservation

LARGEST_CALL_FILES = 5_000
"""How many files one call of Spark rewrites at most: its plan is held in the driver's memory."""

COMMIT_BYTES = 1024**3
"""How much partitions that are put together into one commit have, roughly: a conflict then costs minutes of work and
not hours. A partition of more bytes is one commit nevertheless (`_repeated`)."""

MOST_COMMITS = 10
"""How many commits one compaction makes, roughly at most; every one adds a snapshot."""

MOST_PARTITIONS = 200
"""How many partitions one call names at most: Iceberg compares each file with each of them. With as many in each commit
a run compacts 2,000 partitions, those first that gain most, and the next run the others."""

MOST_FILES_OF_A_RUN = MOST_COMMITS * LARGEST_CALL_FILES
"""How many files one compaction rewrites at most."""

HIDING_SHARE = 0.25
"""How much of a run is for partitions of which delete files hide much, before those that gain more."""

MOST_FILES = "max-files-to-rewrite"

_WITHOUT_DELETES: Mapping[str, str] = {"delete-file-threshold": "1"}
"""Every file to which a delete file applies is written again with the sequence number of the snapshot that was read. No
earlier delete file applies to it then, those that apply to none can go, and equality deletes of meanwhile do apply."""

NEW_NUMBER = "use-starting-sequence-number"
"""Position deletes of the very snapshot that was read would seem to apply, and ask for a larger number. Equality
deletes that are committed meanwhile are a conflict then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionWork:
    """A partition to rewrite, with the number of files that are, their bytes, and how many there are fewer of then.

    is_hiding: whether delete files hide much of it.
    is_freed: whether every file of it to which a delete file applies is among them.
    """

    partition: PartitionObservation
    files: int
    bytes: int
    gain: int
    is_hiding: bool = False
    is_freed: bool = False

    @property
    def key(self) -> tuple[str, bool]:
        """What no other work of the table has."""
        return self.partition.partition, self.is_freed

    @property
    def commits(self) -> float:
        """How many commits it fills."""
        return max(self.bytes / COMMIT_BYTES, self.files / LARGEST_CALL_FILES)

    @property
    def options(self) -> Mapping[str, str]:
        """Of the call that rewrites it."""
        new_number = {NEW_NUMBER: "false"} if self.partition.has_newest_deletes else {}
        return {**_WITHOUT_DELETES, **new_number} if self.is_freed else {}


def unnamed_because(seen: TableObservation, partitions: Sequence[PartitionObservation]) -> str:
    """Why no filter selects exactly these partitions of a table; empty when one does. For a sentence with `it has`."""
    if seen.has_earlier_spec:
        return "files of an earlier partition spec"
    if any(one.filter is None for one in partitions):
        return "partitions whose values no filter of Iceberg can name exactly"
    return ""


def work_of_a_run(work: Sequence[PartitionWork], *, most_files: int = MOST_FILES_OF_A_RUN) -> tuple[PartitionWork, ...]:
    """The work that one run does by Spark: first a share of that which writes deletes away, then what gains most. Of
    the last partition it does a part, where there are more files than a run rewrites."""
    ranked = sorted(work, key=lambda one: one.gain, reverse=True)
    most = MOST_PARTITIONS * MOST_COMMITS
    hiding = [one for one in ranked if one.is_hiding]
    first = _fitting(hiding, int(HIDING_SHARE * most), int(HIDING_SHARE * most_files))
    taken = {one.key for one in first}
    others = [one for one in ranked if one.key not in taken]
    files = most_files - sum(one.files for one in first)
    return tuple(sorted((*first, *_fitting(others, most - len(first), files)), key=lambda one: one.gain, reverse=True))


def _fitting(work: Sequence[PartitionWork], partitions: int, files: int) -> list[PartitionWork]:
    """The first ones, of which the last one may be a part, that together have at most so many files."""
    found: list[PartitionWork] = []
    for one in work[:partitions]:
        if one.files > files:
            return [*found, _part_of(one, files)] if files > 1 else found
        found.append(one)
        files -= one.files
    return found


def _part_of(work: PartitionWork, files: int) -> PartitionWork:
    share = files / work.files
    return replace(work, files=files, bytes=int(share * work.bytes), gain=max(1, int(share * work.gain)))


def rewrite_calls(seen: TableObservation, work: Sequence[PartitionWork]) -> tuple[RewriteCall, ...]:
    """The calls that rewrite some partitions.

    Where the partitions cannot be named, one call is of the whole table, and rewrites what Iceberg finds in it: it may
    find more than is planned here, and find that again in each further call. Small files are put together first: a call
    that writes away deletes is more likely to lose against a writer.
    """
    if unnamed_because(seen, [one.partition for one in work]):
        return (RewriteCall(),)
    commits = _commits_for_one(work)
    return tuple(
        call
        for options in ({}, _WITHOUT_DELETES, {**_WITHOUT_DELETES, NEW_NUMBER: "false"})
        for group in _groups([one for one in work if one.options == options], commits)
        for call in _repeated(any_of([one.partition.filter or "" for one in group]), group, options)
    )


def after_conflict(call: RewriteCall) -> RewriteCall:
    """The call that is made when a writer came before one: deletes that were the newest are so no more."""
    return replace(call, options={name: value for name, value in call.options.items() if name != NEW_NUMBER})


def _commits_for_one(work: Sequence[PartitionWork]) -> float:
    """How many commits' worth of files are put into one, so that there are not too many."""
    return max(1.0, sum(one.commits for one in work) / MOST_COMMITS)


def _groups(work: Sequence[PartitionWork], commits: float) -> Iterator[list[PartitionWork]]:
    """Neighbours that together fill a commit."""
    group: list[PartitionWork] = []
    for one in work:
        group.append(one)
        if len(group) == MOST_PARTITIONS or sum(each.commits for each in group) >= commits:
            yield group
            group = []
    if group:
        yield group


def _repeated(where: str, work: Sequence[PartitionWork], options: Mapping[str, str]) -> Iterator[RewriteCall]:
    """Several equal calls where there are more files than one may plan: each one finds what the calls before it have
    left. Not where there are many bytes alone: a call after which files are still small, or have deletes of meanwhile,
    would leave those to the next one."""
    found = sum(one.files for one in work)
    times = max(1, ceil(found / LARGEST_CALL_FILES))
    few = {MOST_FILES: str(max(2, ceil(found / times)))} if times > 1 else {}
    yield from [RewriteCall(where=where, options={**options, **few})] * times


SMALL_FILE_SHARE = 0.75
"""A file below this share of the target size is small: Iceberg's own default for `min-file-size-bytes`."""

GROUP_FILES, ORDERED_GROUP_FILES = 8, 32
"""How many files of the target size one rewrite job writes at most, and one that brings rows into an order. Ranges of
values overlap from group to group, so that a condition reads a file or two of each; Spark sorts on disk what is larger
than its memory."""

MOST_BYTES_OF_A_PARTITION = 64 * 1024**2
"""Up to so many bytes of small files a partition is compacted by PyArrow: it makes one file of them in memory, where
their rows take five to ten times as many bytes."""

MOST_BYTES_WITHOUT_SPARK = 512 * 1024**2
"""How much one run compacts by PyArrow at most: a minute or two of one core."""


def small_file_bytes(policy: MaintenanceDeclaration) -> int:
    """The size below which a data file is small; without a compaction policy, by the default one."""
    compaction = policy.compaction or CompactionDeclaration()
    return int(compaction.target_file_bytes * SMALL_FILE_SHARE)


def decide_compaction(policy: CompactionDeclaration | None, seen: TableObservation, now: datetime) -> StepDecision:
    """What to do with the small files of a table at a time, and with what delete files hide in it."""
    step = MaintenanceStep.REWRITE_DATA_FILES
    if policy is None:
        return skipped(step, StepReason.NOT_DECLARED, "the table declares no compaction")
    if seen.snapshot_id is None:
        return skipped(step, StepReason.NO_SNAPSHOT, "the table has no snapshot yet")
    full = [one for one in seen.partitions if _is_due(one, policy)]
    found = [one for one in seen.partitions if _hides_much(one, policy) or _shares_much(one, policy)]
    recent = {one.partition for one in (*full, *found) if _is_recent(one, policy, now)}
    due = [one for one in full if one.partition not in recent]
    hiding = [one for one in found if one.partition not in recent]
    unnamed = unnamed_because(seen, [*due, *hiding])
    if unnamed and recent:  # Spark would rewrite the recent ones, too, and PyArrow applies no deletes to large files
        hiding = []
    hiding = [one for one in hiding if not unnamed or _hides_much(one, policy)]
    why_spark = "the rows that delete files hide" if hiding else _why_spark(policy, seen, due)
    if recent and (not (due or hiding) or (unnamed and why_spark)):
        wanted = {one.partition for one in (*full, *found)}
        return _left_alone(policy, recent=len(recent), wanted=len(wanted), unnamed=unnamed)
    if not due and not hiding:
        why = f"{seen.small_files} of {seen.data_files} files are small, and no partition has {policy.min_input_files}"
        why += _hidden(seen.partitions, "; delete files hide ")
        why += f", and stay, because the table has {unnamed}" if found else ""
        return skipped(step, StepReason.FEW_SMALL_FILES, why)
    return _rewrite(policy, seen, due=due, hiding=hiding, recent=recent, why_spark=why_spark)


def _rewrite(
    policy: CompactionDeclaration,
    seen: TableObservation,
    *,
    due: Sequence[PartitionObservation],
    hiding: Sequence[PartitionObservation],
    recent: Collection[str],
    why_spark: str,
) -> StepDecision:
    found = _work(policy, due, hiding)
    most = LARGEST_CALL_FILES if unnamed_because(seen, [*due, *hiding]) else MOST_FILES_OF_A_RUN  # one call, or several
    work = work_of_a_run(found, most_files=most) if why_spark else found
    done = {one.partition.partition for one in work}
    later = len({one.partition.partition for one in set(found).difference(work)})
    hiding = [one.partition for one in work if one.is_hiding]
    rewritten_bytes = sum(one.bytes for one in work)
    files = min(sum(one.small_files for one in due if one.partition in done), sum(one.files for one in work))
    by = f", by Spark because of {why_spark}" if why_spark else ""
    left = f", {len(recent)} more are left alone as recently written" if recent else ""
    left += f", {later} more are left to the next run" if later else ""
    mebibytes = rewritten_bytes / 1024**2
    return StepDecision(
        step=MaintenanceStep.REWRITE_DATA_FILES,
        action=StepAction.RUN,
        reason=StepReason.DELETED_ROWS if hiding else StepReason.SMALL_FILES,
        explanation=(
            f"{files} small files{_hidden(hiding, ' and what delete files hide, ')} ({rewritten_bytes} bytes) in "
            f"{len(done)} of {len(seen.partitions)} partitions{by}{left}"
        ),
        options=_compaction_options(policy),
        calls=rewrite_calls(seen, work) if why_spark else (),
        is_for_spark=bool(why_spark),
        is_sorted=bool(why_spark) and policy.strategy == "sort",
        z_order=policy.z_order or (),
        partitions=tuple(partition.partition for partition in due),
        left=len(recent) + later,
        gain=sum(one.gain for one in work),
        cost_seconds=(
            SPARK_SECONDS + mebibytes * SPARK_SECONDS_OF_A_MEBIBYTE
            if why_spark
            else files * SECONDS_OF_A_FILE + mebibytes * SECONDS_OF_A_MEBIBYTE
        ),
        cost_bytes=rewritten_bytes,
    )


def _work(
    policy: CompactionDeclaration,
    due: Sequence[PartitionObservation],
    hiding: Sequence[PartitionObservation],
) -> Sequence[PartitionWork]:
    """The small files of the partitions that are due, and any file of those of which delete files hide much. Where
    shared ones do, its small files are put together by themselves, because that loses against fewer writers."""
    small = {
        one.partition: PartitionWork(
            partition=one, files=one.small_files, bytes=one.small_bytes, gain=_saved_files(one, policy)
        )
        for one in due
    }
    freed = [_freed(one, small.get(one.partition)) for one in hiding if _shares_much(one, policy)]
    others = [_all_files(one, small.pop(one.partition, None)) for one in hiding if not _shares_much(one, policy)]
    return (*small.values(), *others, *freed)


def _all_files(partition: PartitionObservation, small: PartitionWork | None) -> PartitionWork:
    """One call of Spark finds both the small files and those of which delete files of their own hide much."""
    gain = 1 + (small.gain if small else 0)
    return PartitionWork(
        partition=partition, files=partition.data_files, bytes=partition.data_bytes, gain=gain, is_hiding=True
    )


def _freed(partition: PartitionObservation, small: PartitionWork | None) -> PartitionWork:
    """What is left to write after its small files were put together, if they are."""
    files, size = (small.files, small.bytes) if small else (0, 0)
    return PartitionWork(
        partition=partition,
        files=max(1, partition.data_files - files),
        bytes=partition.data_bytes - size,
        gain=1,
        is_hiding=True,
        is_freed=True,
    )


def _is_due(partition: PartitionObservation, policy: CompactionDeclaration) -> bool:
    """Iceberg rewrites a group of enough small files, or of several that make more than one full file. Without a file
    fewer afterwards the same files would be rewritten by every run."""
    many = partition.small_files >= policy.min_input_files
    several = partition.small_files > 1 and partition.small_bytes > policy.target_file_bytes
    return (many or several) and _saved_files(partition, policy) > 0


def _hides_much(partition: PartitionObservation, policy: CompactionDeclaration) -> bool:
    """Whether delete files hide so much of a partition that they hide it of one of its data files, too. Spark rewrites
    that one, and knows of it only by delete files of its own."""
    return 0 < partition.deleted_rows >= policy.max_deleted_share * partition.rows


def _shares_much(partition: PartitionObservation, policy: CompactionDeclaration) -> bool:
    """Whether delete files list so much of a partition, with those that its data files share. Iceberg does not know of
    which file such rows are, so every one to which a delete file applies is written again."""
    listed = partition.shared_deletes + partition.deleted_rows
    return partition.shared_deletes > 0 and listed >= policy.max_deleted_share * partition.rows


def _hidden(partitions: Sequence[PartitionObservation], said: str) -> str:
    """How many rows delete files hide in some partitions, for a sentence; empty where they hide none."""
    hiding = [one for one in partitions if one.deleted_rows or one.shared_deletes]
    hidden = sum(min(one.rows, one.deleted_rows + one.shared_deletes) for one in hiding)
    return f"{said}at most {hidden} of {sum(one.rows for one in hiding)} rows" if hiding else ""


def _is_recent(partition: PartitionObservation, policy: CompactionDeclaration, now: datetime) -> bool:
    written, spared = partition.written_at, policy.leave_recent
    return written is not None and spared is not None and now - written < spared


def _left_alone(policy: CompactionDeclaration, *, recent: int, wanted: int, unnamed: str) -> StepDecision:
    """Without a filter Spark's procedure rewrites all partitions or none: it waits until none of them is recent."""
    spared = "" if policy.leave_recent is None else duration_words(policy.leave_recent)
    why = f"{recent} of {wanted} partitions to rewrite were written within {spared}, and are left alone"
    reason = StepReason.RECENTLY_WRITTEN
    if recent < wanted:
        reason = StepReason.PARTITIONS_UNNAMED
        why += f"; the others need Spark, which would rewrite all of them, because the table has {unnamed}"
        why += ": where one is written always, declare no `leave_recent`"
    return skipped(MaintenanceStep.REWRITE_DATA_FILES, reason, why)


def _saved_files(partition: PartitionObservation, policy: CompactionDeclaration) -> int:
    return partition.small_files - max(1, ceil(partition.small_bytes / policy.target_file_bytes))


def _why_spark(policy: CompactionDeclaration, seen: TableObservation, due: Sequence[PartitionObservation]) -> str:
    """What needs Spark for a compaction; empty when PyArrow does it, which sorts the rows of each file by itself."""
    if seen.rewrite_limits:
        return " and ".join(seen.rewrite_limits)
    if policy.strategy == "z_order":
        return "the z-order of rows"
    if any(partition.small_bytes > MOST_BYTES_OF_A_PARTITION for partition in due):
        return "the size of a partition"
    if policy.strategy == "sort" and any(partition.small_bytes > seen.small_file_bytes for partition in due):
        return "the order of rows over several files"
    if sum(partition.small_bytes for partition in due) > MOST_BYTES_WITHOUT_SPARK:
        return "their size"
    if sum(partition.small_files for partition in due) > LARGEST_CALL_FILES:
        return "their number"
    return ""


def _compaction_options(policy: CompactionDeclaration) -> Mapping[str, str]:
    """What Iceberg would take a default for is named, too: what is planned is what is done.

    Source: https://iceberg.apache.org/docs/latest/spark-procedures/#rewrite_data_files
    """
    group_files = GROUP_FILES if policy.strategy == "binpack" else ORDERED_GROUP_FILES
    options = {
        "target-file-size-bytes": policy.target_file_bytes,
        "min-file-size-bytes": int(policy.target_file_bytes * SMALL_FILE_SHARE),
        "min-input-files": policy.min_input_files,
        "max-file-group-size-bytes": group_files * policy.target_file_bytes,
        MOST_FILES: LARGEST_CALL_FILES,
        "delete-ratio-threshold": policy.max_deleted_share,
    }
    return {name: str(value) for name, value in options.items()}
