"""Decides which files were left behind by writers of Sluice that have ended, and why every other file stays.

A file is a leftover only when all of this is known of it:

    where     it lies in the folder of a writer of Sluice, and the ledger knows that writer
    ended     that writer has ended, and the file was written before that: a copy that somebody brought back was not
    when      it is older than the grace
    never     the history of its table is whole since before the file was written, and no snapshot of it had the file
    nowhere   no other table of the catalog refers to it

A commit of a file is younger than the file. So a history that lists every commit since proves that there was none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sluice.publication.write_folders import Writer
from sluice.tables.stored_files import StoredFile

CLOCK_MARGIN = timedelta(hours=1)
"""So much the clock of the object store, which dates files, and those of writers, which date snapshots, may differ.
More than that is a machine whose certificates and tokens fail, too."""

_SETTLED_AFTER = 2 * CLOCK_MARGIN
"""Files are moved so long after the end of their writer: a copy that is brought back then is younger than that end by
any clock, so that no later removal takes it."""


class FileFate(StrEnum):
    """LEFT: it is a leftover. Every other word is why a file stays."""

    LEFT = "left"
    NEEDED = "needed"
    YOUNG = "young"
    WRITER_LIVES = "writer_lives"
    WRITER_UNKNOWN = "writer_unknown"
    BROUGHT_BACK = "brought_back"
    HISTORY_EXPIRED = "history_expired"
    FOREIGN = "foreign"


SENTENCES: Mapping[FileFate, str] = {
    FileFate.LEFT: "left behind by writers that have ended",
    FileFate.NEEDED: "referred to by a table of the catalog",
    FileFate.YOUNG: "younger than the grace",
    FileFate.WRITER_LIVES: "of writers that live or ended within two hours; they are looked at again after that",
    FileFate.WRITER_UNKNOWN: "in folders of writers that the ledger does not know; look which deployment wrote them",
    FileFate.BROUGHT_BACK: "brought back since their writers ended; whoever did that may delete them",
    FileFate.HISTORY_EXPIRED: "older than the history of the table, so nothing shows whether they were visible; "
    "let `expiry.older_than` be longer than the grace",
    FileFate.FOREIGN: "not written by Sluice, or by Spark's MERGE or compaction under names of its own; Iceberg's "
    "`remove_orphan_files` removes them, with `older_than` of three days at least and while no batch is held",
}
"""What is said of the files of each fate, after their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFile:
    """A file, who wrote it, and what becomes of it. writer: unset when it lies in no folder of a writer."""

    file: StoredFile
    writer: Writer | None
    fate: FileFate


def decide_fates(
    files: Iterable[tuple[StoredFile, Writer | None]],
    *,
    needed: Collection[str],
    writers: Mapping[Writer, datetime | None],
    whole_since: datetime | None,
    now: datetime,
    grace: timedelta,
) -> tuple[JudgedFile, ...]:
    """Decide what becomes of each file.

    Parameters
    ----------
    files: each with who wrote it. needed: the names of files that a table refers to. A name is enough: engines put a
        random number into it, and the same file has many addresses (`s3`, `s3a`, another endpoint).
    writers: those that the ledger knows, and when each ended; unset while it may write.
    whole_since: every snapshot that was committed to the table since then is listed; unset when nothing is known.
    grace: a younger file stays. A writer that is not over keeps its files however old they are.
    """

    def fate_of(file: StoredFile, writer: Writer | None) -> FileFate:
        if file.name in needed:
            return FileFate.NEEDED
        if writer is None:
            return FileFate.FOREIGN
        if file.modified_at > now - grace:
            return FileFate.YOUNG
        if writer not in writers:
            return FileFate.WRITER_UNKNOWN
        ended_at = writers[writer]
        if ended_at is None or now <= ended_at + _SETTLED_AFTER:
            return FileFate.WRITER_LIVES
        if file.modified_at > ended_at + CLOCK_MARGIN:
            return FileFate.BROUGHT_BACK
        if whole_since is None or file.modified_at < whole_since + CLOCK_MARGIN:
            return FileFate.HISTORY_EXPIRED
        return FileFate.LEFT

    return tuple(JudgedFile(file=file, writer=writer, fate=fate_of(file, writer)) for file, writer in files)


def sentences_of(judged: Sequence[JudgedFile]) -> tuple[str, ...]:
    """How many files of each fate there are, a sentence each, without those that tables refer to."""
    count, size = Counter(one.fate for one in judged), Counter[FileFate]()
    for one in judged:
        size[one.fate] += one.file.size
    return tuple(
        f"{count[fate]} files, {size[fate] / 1024**2:.1f} MiB, {SENTENCES[fate]}."
        for fate in FileFate
        if count[fate] and fate is not FileFate.NEEDED
    )
