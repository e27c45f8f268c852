"""Divides a compaction by Spark into calls, each of some partitions, and one commit. Pure.

Iceberg commits in parts by itself, too, with its option `partial-progress.enabled`. But then it only logs the commits
that fail, reports none of their files, and takes fewer commits than were allowed for failed ones; so nothing says what
a compaction has left undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from sluice.maintenance.step_decision import RewriteCall
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
