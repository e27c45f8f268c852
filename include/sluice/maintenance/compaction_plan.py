"""Decides which files of a table are written together into fewer ones, and by whom. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from math import ceil

from sluice.declarations.maintenance_declaration import CompactionDeclaration, MaintenanceDeclaration
from sluice.declarations.scalar_types import duration_words
from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.rewrite_calls import (
    LARGEST_CALL_FILES,
    MOST_FILES,
    MOST_FILES_OF_A_RUN,
    PartitionWork,
    rewrite_calls,
    unnamed_because,
    work_of_a_run,
)
from sluice.maintenance.step_decision import (
    SECONDS_OF_A_FILE,
    SECONDS_OF_A_MEBIBYTE,
    SPARK_SECONDS,
    SPARK_SECONDS_OF_A_MEBIBYTE,
    StepAction,
    StepDecision,
    StepReason,
    skipped,
)
from sluice.tables.table_observation import PartitionObservation, TableObservation

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
