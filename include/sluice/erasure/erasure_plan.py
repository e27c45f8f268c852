"""Decides whether rows of a person are erased from a table, in which steps, and what blocks it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from sluice.erasure.ways_out import upgraded, way_out_of, written_again
from sluice.maintenance.pin_plan import Knowledge, ReaderObservation
from sluice.operations import OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.tables.manifest_reading import statement_without_delete_files


class Place(StrEnum):
    """Where a file with rows that are meant is found.

    LIVE: the newest snapshot has it. TRASH: it is in the trash. OTHER: an earlier snapshot has it, or nothing refers
    to it.
    """

    LIVE = "live"
    OTHER = "other"
    TRASH = "trash"


_WORDS = {
    Place.LIVE: "of the newest snapshot",
    Place.OTHER: "of earlier snapshots, or left behind",
    Place.TRASH: "in the trash",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeantFile:
    """A file with rows that are to be erased. rows: how many of them it holds."""

    path: str
    place: Place
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedReader:
    """An input that reads the table. stops: where rows are overwritten. runs: it has a live run, which may have chosen
    where it begins before that is on record."""

    reader: ReaderObservation
    stops: bool
    runs: bool = False

    def __str__(self) -> str:
        return f"{self.reader.stream} (input {self.reader.input})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureSeen:
    """What was observed of a table.

    digest: of the condition. rows: all that the newest snapshot has. searched: how many files were read.
    unread: the files that could not be searched and that no snapshot needs, each with the reason. unread_listed: those
    that one needs. meant: those with rows that are to be erased.
    unsearched: files of the newest snapshot that lie elsewhere. outside: other files outside of the folders that
    metadata names. unwritable: live files with such rows that cannot be written again, each with the reason.
    delete_files: how many the newest snapshot has. limits: what of the table keeps its files from being written again.
    kept: the snapshots that stay, from the cut on; empty when there is no cut yet. gone: how many others there are.
    references: the tags and branches on those that go. forked: what among them has commits of its own: branches, and
    snapshots that another program has staged and not published.
    named_by: the streams that look up a state of the table that goes, or begin there. doubtful: how many
    manifests of the table and its staging tables, needed or not, list a file that is not known to hold no such row.
    young: folders of dropped staging tables that may be of tables which are being created. denied: folders of staging
    tables that may not be looked at. foreign: those with metadata that names files of the table and is not
    known as that of staging tables of it. unlisted: files with such rows, and manifests that may name values of some,
    which no known state lists: a commit under way may have written them. staged: the staging tables with files of
    unpublished batches, by name. to_cut: those whose history holds more than it needs.
    writers: what blocks writers, as refusals. readers: of the table. backfilled: those with a backfill that has not
    ended. waiting: other streams that hold a place in it. shadows: the refreshes that hold one, with until when.
    others: the tables that list a file with rows that are meant, or lie in its folders. lost: those with metadata
    beside their line of commits. feeds: the tables that its readers write. sources: what its writers read.
    checkpoints: the streams that read or write it. quarantines: of its writers, that are not searched along.
    takes_every_row: whether a person has agreed that all rows may go.
    """

    table: str
    digest: str
    rows: int
    searched: int
    meant: tuple[MeantFile, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    unread_listed: tuple[tuple[str, str], ...] = ()
    unsearched: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    unwritable: tuple[tuple[str, str], ...] = ()
    delete_files: int = 0
    limits: tuple[str, ...] = ()
    kept: tuple[int, ...] = ()
    gone: int = 0
    references: tuple[str, ...] = ()
    forked: tuple[str, ...] = ()
    named_by: tuple[str, ...] = ()
    doubtful: int = 0
    young: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    to_cut: tuple[str, ...] = ()
    writers: tuple[Refusal, ...] = ()
    readers: tuple[ErasedReader, ...] = ()
    backfilled: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    shadows: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    quarantines: tuple[str, ...] = ()
    takes_every_row: bool = False

    @property
    def live_rows(self) -> int:
        """How many rows of the newest snapshot go."""
        return sum(one.rows for one in self.meant if one.place is Place.LIVE)

    @property
    def is_due(self) -> bool:
        """Whether anything is left: rows, or manifests that may name values of some."""
        return bool(self.meant) or self.doubtful > 0

    @property
    def behind(self) -> tuple[ErasedReader, ...]:
        """The readers that have not passed the cut; where there is none yet, all that have read anything."""
        return tuple(one for one in self.readers if is_behind(one, self.kept))


def is_behind(one: ErasedReader, kept: tuple[int, ...]) -> bool:
    """Whether a reader still needs a snapshot that goes. One that has not started begins with what is left, unless it
    starts just now; one that found the table empty, with the oldest snapshot, of which it would read nothing else."""
    reader = one.reader
    if reader.knowledge is Knowledge.NOT_STARTED:
        return one.runs
    return reader.knowledge is Knowledge.UNKNOWN or reader.position not in kept


def backfill_refusal(stream: str) -> Refusal:
    """Why a backfill that has not ended keeps rows from being erased."""
    return Refusal(
        reason=RefusalReason.NOT_AT_REST,
        sentence=f"A backfill of {stream} has not reported an end.",
        next_step=f"Let it end: `sluice work list`, `sluice stream status {stream}`. When its process has died, repeat "
        "it, or let `sluice stream clean` note that.",
    )


def plan_erasure(seen: ErasureSeen) -> OperationPlan[ErasureSeen]:
    """What an erasure will do to one table, in order, or what blocks it."""
    steps = tuple(_steps(seen)) if seen.is_due else ("No file below its folders holds such a row: nothing is changed.",)
    return OperationPlan(
        verb=OperationVerb.ERASE,
        subject=seen.table,
        seen=seen,
        steps=steps_of(f"{seen.searched} Parquet files were searched below its folders.", *steps, *_notes(seen)),
        refusals=tuple(_refusals(seen)),
        at_stake=Stake.ROWS if seen.is_due else Stake.NOTHING,
        rows=seen.live_rows,
        evidence={
            "condition": seen.digest,
            "rows": {place.value: sum(one.rows for one in seen.meant if one.place is place) for place in Place},
            "files": sha256("\n".join(sorted(one.path for one in seen.meant)).encode()).hexdigest(),
            "doubtful": seen.doubtful,
            "references": list(seen.references) if seen.is_due else [],
            "waits_for": [str(one) for one in seen.behind],
        },
    )


def _steps(seen: ErasureSeen) -> Iterator[str]:
    for place in Place:
        found = [one for one in seen.meant if one.place is place]
        if found:
            rows = sum(one.rows for one in found)
            verb = "Write again without" if place is Place.LIVE else "Delete with"
            yield f"{verb} {_count(rows, 'row')}: {_files(len(found))} {_WORDS[place]}."
    if seen.doubtful:
        yield (
            f"{_count(seen.doubtful, 'manifest')} may name values of such rows: what removed files held is unknown, "
            "and manifests have the lowest and highest values of each."
        )
    if seen.to_cut:
        yield f"Cut the history of its staging tables: {', '.join(seen.to_cut)}."
    if not seen.kept:
        yield "Append an empty snapshot, at which history is cut."
    if seen.behind:
        names = ", ".join(map(str, seen.behind))
        yield f"Wait until the cut is passed by {names}: the command ends there, and is repeated after that."
    gone = seen.gone + (seen.live_rows > 0)  # the one that takes them out goes, too
    yield f"Expire all {gone} snapshots before the cut, and delete for good what they alone need, data and metadata."
    if seen.references:
        yield f"Remove the tags and branches that keep them: {', '.join(seen.references)}."
    yield "Search every file again, and end as failed if one holds such a row."


def _notes(seen: ErasureSeen) -> Iterator[str]:
    if seen.feeds:
        yield f"Not searched: tables that streams fill from this one, {', '.join(seen.feeds)}. Erase there, too."
    if seen.checkpoints:
        yield (
            f"Not searched: the checkpoints of {', '.join(seen.checkpoints)}, with their copies. Where a stream keeps "
            "state or rows in it, `sluice stream reset` opens another one, and `sluice stream clean` removes the old."
        )
    if seen.quarantines:
        yield (
            f"Not searched: rejected records in {', '.join(seen.quarantines)}. Give `--text` with what they contain."
        )
    if seen.denied:
        yield (
            f"Not searched, as the object store denies it: {', '.join(seen.denied)}. Staging tables that were dropped "
            "may have left manifests there, with the lowest and highest values of their files."
        )
    if seen.sources:
        yield (
            f"Not searched, what the table is made of: {', '.join(seen.sources)}. What they still hold comes back by a "
            "backfill, a refresh or a reset."
        )
    yield (
        "Not searched: what checks of the table found, and the lowest and highest numbers of each batch, in the ledger "
        "and the Data Docs, until their retention ends."
    )


def _refusals(seen: ErasureSeen) -> Iterator[Refusal]:
    if not seen.is_due:  # whoever does not need it is not kept waiting; but "nothing" has to be certain
        yield from _of_search(seen)
        return
    again = f"Then repeat the command: `sluice table erase {seen.table}`."
    yield from seen.writers
    yield from _of_files(seen)
    yield from _of_history(seen, again)
    yield from _of_readers(seen, again)


def _of_search(seen: ErasureSeen) -> Iterator[Refusal]:
    if seen.unread:
        path, why = seen.unread[0]
        yield Refusal(
            reason=RefusalReason.NOT_PROVABLE,
            sentence=f"{_files(len(seen.unread))} below the folders cannot be searched, such as {path}: {why}",
            next_step="Repeat it once, then look at each. No snapshot needs it: move it elsewhere or delete it, unless "
            "a commit of another program is under way.",
        )
    if seen.unread_listed:
        path, why = seen.unread_listed[0]
        yield Refusal(
            reason=RefusalReason.NOT_PROVABLE,
            sentence=f"{_files(len(seen.unread_listed))} that snapshots need cannot be searched: {path}: {why}",
            next_step=f"Delete none. Let Spark write them again: `{written_again(seen.table)}`, and "
            "`rewrite_manifests`; then expire what is before that.",
        )
    if away := seen.unsearched or seen.outside:
        yield Refusal(
            reason=RefusalReason.NOT_PROVABLE,
            sentence=f"{_files(len(away))} of {seen.table} lie outside of its folders, such as {away[0]}: they are not "
            "searched, and may belong to somebody else.",
            next_step=f"Let Spark write the table into its folder: `{written_again(seen.table)}`, and "
            "`rewrite_manifests`. Expire what is before that, and look at the folder that is left.",
        )


def _of_files(seen: ErasureSeen) -> Iterator[Refusal]:
    yield from _of_search(seen)
    if seen.unwritable:
        path, why = seen.unwritable[0]
        yield Refusal(
            reason=RefusalReason.NOT_YET,
            sentence=f"{_files(len(seen.unwritable))} with such rows cannot be written again, such as {path}: {why}",
            next_step=f"Let Spark write them: `{written_again(seen.table)}`. Then repeat the command.",
        )
    if seen.delete_files:
        yield Refusal(
            reason=RefusalReason.DELETE_FILES,
            sentence=f"{seen.table} has {seen.delete_files} delete files: rows that they hide are in its data files.",
            next_step=f"Write them away first, in Spark: `{statement_without_delete_files(seen.table)}`.",
        )
    for limit in seen.limits:
        yield Refusal(
            reason=RefusalReason.NOT_YET,
            sentence=f"{seen.table} has {limit}, which Sluice does not write.",
            next_step=upgraded(seen.table)
            if limit.endswith(" 1")
            else "There is no way yet: no command erases rows from it.",
        )
    if seen.rows and seen.live_rows >= seen.rows and not seen.takes_every_row:
        yield Refusal(
            reason=RefusalReason.EVERY_ROW,
            sentence=f"The condition is true for every one of the {seen.rows:,} rows of {seen.table}.",
            next_step="Look at it again. If all rows are to go, give `--every-row`.",
        )
    for name in seen.others:
        yield Refusal(
            reason=RefusalReason.OTHER_WRITERS,
            sentence=f"{name} refers to a file with such rows, or lies in a folder of {seen.table}.",
            next_step="Drop that table, or end what it belongs to: `sluice stream leftovers` shows what was left.",
        )


def _of_history(seen: ErasureSeen, again: str) -> Iterator[Refusal]:
    runs = any(one.reason is RefusalReason.NOT_AT_REST for one in seen.writers)  # then stopping it is the way out
    for name in () if runs else seen.staged:
        yield Refusal(
            reason=RefusalReason.BATCH_HELD,
            sentence=f"{name} holds a batch that is not published, or not cleared.",
            next_step=f"{way_out_of(name)} {again}",
        )
    if seen.young:
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"{seen.young[0]} has metadata for {seen.table} and is of no table: one may be created there.",
            next_step=f"Wait for a quarter of an hour. {again}",
        )
    for place in seen.foreign:
        yield Refusal(
            reason=RefusalReason.OTHER_WRITERS,
            sentence=f"{place} names files of {seen.table}, and is of no staging table of it that was dropped: another "
            "catalog may have that table.",
            next_step=f"Look whose it is. When no catalog has it, delete the folder. {again}",
        )
    if seen.unlisted:
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"{_files(len(seen.unlisted))} of no known state of {seen.table} are younger than a day, such as "
            f"{seen.unlisted[0]}: a commit that needs them may be under way.",
            next_step=f"Wait until they are a day old, or delete them when none is. {again}",
        )
    for name in seen.lost:
        yield Refusal(
            reason=RefusalReason.CATALOG_BEHIND,
            sentence=f"Metadata of {name} lies beside its line of commits: the catalog was set back.",
            next_step="Bring the newer metadata back, or delete it when that state is not to come back.",
        )
    for one in seen.forked:
        yield Refusal(
            reason=RefusalReason.OTHER_WRITERS,
            sentence=f"{one} has rows that main does not have, and would be removed.",
            next_step=f"Merge or drop it first. {again}",
        )
    for stream in seen.named_by:
        yield Refusal(
            reason=RefusalReason.READER_STOPS,
            sentence=f"{stream} needs a state of {seen.table} that goes, by its snapshot, its time or its tag.",
            next_step="Declare another one, or none, for that input; one that only begins there may be started before.",
        )


def _of_readers(seen: ErasureSeen, again: str) -> Iterator[Refusal]:
    for one in seen.readers:
        if one.reader.knowledge is Knowledge.UNKNOWN:
            yield Refusal(
                reason=RefusalReason.NOT_PROVABLE,
                sentence=f"Where {one} stands in the table is unknown: {one.reader.problem}.",
                next_step=f"`sluice checkpoint check {one.reader.stream}` shows more. {again}",
            )
        elif one.stops and seen.live_rows and one.reader.knowledge is Knowledge.KNOWN:
            yield Refusal(
                reason=RefusalReason.READER_STOPS,
                sentence=f"{one} stops where rows are overwritten, as its `on_overwrite: fail` asks for.",
                next_step="Declare `on_overwrite: skip` for that input, until it has passed the erasure.",
            )
    yield from map(backfill_refusal, seen.backfilled)
    for shadow in seen.shadows:
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"{shadow}, keeps a place in {seen.table}, from which its old content can be brought back.",
            next_step=f"Wait until then. {again}",
        )
    for stream in seen.waiting:
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"{stream} may stand in {seen.table}, by a refresh, an earlier declaration or an unreadable one.",
            next_step=f"Stop or restart it, end its refresh, or repair its declaration: `sluice validate`. {again}",
        )


def _files(count: int) -> str:
    return _count(count, "file")


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}s" if count != 1 else f"1 {what}"
