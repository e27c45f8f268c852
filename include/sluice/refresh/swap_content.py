"""Exchanges the whole content of a table and the generation of its stream's mark, in one commit, and brings it back.

The commit removes every live file of the table, adds the new ones, sets the mark of the new generation and, for a
refresh, a tag on the head that it replaces. It asserts that head, so that rows that others add meanwhile make it plan
again. It is an overwrite, whatever it removes: streams that read the appended rows must not take these for new ones.

A process may die between the commit and its record: `settle_refresh` completes that.

The way back adds copies of the files. The files themselves must not be added to the table again: the swap has removed
them. Iceberg's Java library, when it expires the snapshot of the swap, deletes the files that this snapshot removed
without a look at later ones, once no tag is left on the table (measured with Iceberg 1.12). Sluice's own expiry
compares with what is still reachable.

What the stream has appended since the refresh lies in the history of the table, and what it appends again afterwards
does too. Whoever reads the appended rows reads those of both times, wherever it stands now.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePosixPath

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from sluice.backfill.backfill_plan import TargetReader
from sluice.backfill.observe_backfill import readers_of
from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import UnpublishableError, UsageError
from sluice.ledger.refreshes import RefreshObservation
from sluice.operations import Refusal, RefusalReason
from sluice.publication.chain import MarkPosition, refuse_stale_token
from sluice.publication.checked_commit import HeadTag, NothingToCommit, TableChange, commit_checked, snapshot_of
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.data_files import data_folder
from sluice.publication.mark_moves import MarkMove, summary_of_move
from sluice.publication.marks import entries_of, history_of_main, read_target_state
from sluice.publication.publish_batches import live_files
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import StagedOutput
from sluice.refresh.observe_refresh import delete_files_of
from sluice.sources.iceberg_positions import step_of
from sluice.stored_keys import PUBLICATION_KEY
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import require_table

_AT_ONCE = 4
"""How many files are copied at the same time: enough to hide an object store's latency."""

_CHUNK_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRows:
    """Rows that were appended to a table since a refresh, and who reads them. is_known: whether they were counted."""

    table: str
    rows: int
    is_known: bool
    readers: tuple[TargetReader, ...]

    @property
    def are_read(self) -> bool:
        """Whether somebody gets a row twice, or may."""
        return bool(self.readers) and (self.rows > 0 or not self.is_known)

    @property
    def names(self) -> tuple[str, ...]:
        """Stream and input of each reader."""
        return tuple(f"{reader.stream} (input {reader.input})" for reader in self.readers)

    @property
    def sentence(self) -> str:
        """What the readers get twice."""
        rows = f"{self.rows:,} rows were" if self.is_known else f"At least {self.rows:,} rows were"
        return (
            f"{rows} appended to {self.table} since the refresh, and are appended again afterwards: "
            f"{', '.join(self.names)} gets them a second time."
        )

    def refusal(self, stream: str) -> Refusal:
        """Why the refresh is not taken back without the word of a person."""
        return Refusal(
            reason=RefusalReason.READERS_REPEAT,
            sentence=self.sentence,
            next_step=f"Refresh {stream} again instead. If the readers may get these rows twice, or are refreshed "
            "afterwards, repeat it with `--allow-repeated`.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOfFile:
    """A file of the old content, and where its copy lies."""

    original: DataFile
    copy: str

    def as_data_file(self) -> DataFile:
        """The entry of the copy in the same table."""
        original = self.original
        values = {field.name: original[place] for place, field in enumerate(DATA_FILE_TYPE[2].fields)}
        copied = DataFile.from_args(_table_format_version=2, **{**values, "file_path": self.copy})
        copied.spec_id = original.spec_id
        return copied


@dataclass(frozen=True, slots=True, kw_only=True)
class NewContent:
    """What a table is to hold from one commit on.

    files_for: the files for the target, as it is loaded for an attempt.
    key: the publication key. mark: the first one of the new generation.
    follows: the generation and the batch at which the mark must stand before.
    tag: keeps the earlier content; unset for none.
    way_out: what a person can do when a file of the new content is gone.
    """

    output: StagedOutput
    files_for: Callable[[Table], Sequence[DataFile]]
    key: str
    mark: MarkPosition
    follows: tuple[int, int] | None
    tag: HeadTag | None = None
    way_out: str = ""


def swap_key(refresh: RefreshObservation) -> str:
    """The publication key of the commits that bring the new content."""
    return f"{refresh.stream}/refresh/{refresh.label}"


def swap_content(catalog: Catalog, content: NewContent, *, reached: Reached = unnoticed) -> int:
    """Exchange the content, unless the mark is in the new generation already.

    Parameters
    ----------
    reached: called with `CHECKED` before each commit is sent.

    Returns
    -------
    The snapshot that made the new content visible.

    Raises
    ------
    StaleTokenError: when a newer run has taken the stream over.
    UnpublishableError: when the stream has published meanwhile, or the table has delete files.
    StagedFilesMissingError: when a file of the new content is gone.
    DeliveryError, LakehouseError: as `commit_checked` raises them.
    """
    output = content.output

    def plan(target: Table) -> TableChange | NothingToCommit:
        state = read_target_state(target, output)
        at = state.position(output)
        if at.generation == content.mark.generation:
            return NothingToCommit(snapshot_id=state.published_by)
        refuse_stale_token(at, content.mark.token, target=output.target)
        _refuse_published(at, content)
        if delete_files_of(target):
            raise UnpublishableError(
                f"{output.target} has delete files, and its content is exchanged by its data files.",
                next_step=f"Compact it first: `sluice table maintain {output.target}`.",
            )
        return TableChange(
            operation=Operation.OVERWRITE,
            removed=tuple(live_files(target)),
            added=tuple(content.files_for(target)),
            summary={PUBLICATION_KEY: content.key, **summary_of_move(output, content.mark, MarkMove.SWAPPED)},
            output=output,
            mark=content.mark,
            tag=content.tag,
            way_out=content.way_out,
        )

    what = f"{content.key} into {output.target}"
    committer = PyIcebergCommitter(catalog)
    landed = commit_checked(committer, output.target, plan, what=what, reached=reached)
    return snapshot_of(landed, what=what)


def _refuse_published(at: MarkPosition, content: NewContent) -> None:
    if content.follows is not None and (at.generation, at.batch) != content.follows:
        raise UnpublishableError(
            f"{content.output.target}: batch {at.generation}:{at.batch} became visible after batch "
            f"{content.follows[0]}:{content.follows[1]}, on which the exchange was planned.",
            next_step="Repeat the command.",
        )


def rows_at(table: Table, snapshot_id: int) -> int:
    """The rows of a snapshot as its summary counts them; 0 when it is not listed any more."""
    snapshot = table.snapshot_by_id(snapshot_id)
    summary = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}
    return int(summary.get("total-records", 0))


def plan_copies(target: Table, refresh: RefreshObservation) -> tuple[CopyOfFile, ...]:
    """The files of the content before a refresh, each with the place of its copy, which is the same each time.

    Raises
    ------
    UsageError: when the tag is gone: the earlier content is not kept any more.
    LakehouseError: when a manifest cannot be read.
    """
    tagged = target.refs().get(refresh.tag)
    snapshot = target.snapshot_by_id(tagged.snapshot_id) if tagged is not None else None
    if snapshot is None:
        raise UsageError(
            f"{'.'.join(target.name())} has no tag {refresh.tag}: the content before refresh {refresh.number} is "
            "not kept any more.",
            next_step=f"Rebuild the table instead: `sluice stream refresh {refresh.stream}`.",
        )
    folder = f"{data_folder(target.metadata)}/taken_back_{refresh.label}"
    with catalog_refusals(f"read the manifests of {'.'.join(target.name())}"):
        files = sorted(
            (
                entry.data_file
                for manifest in snapshot.manifests(target.io)
                if manifest.content == ManifestContent.DATA
                for entry in manifest.fetch_manifest_entry(target.io, discard_deleted=True)
            ),
            key=lambda file: file.file_path,
        )
    places = _places(files, folder)
    return tuple(CopyOfFile(original=file, copy=place) for file, place in zip(files, places, strict=True))


def copy_files(io: FileIO, copies: Sequence[CopyOfFile]) -> None:
    """Copy files; a copy that is whole already stays, so that a second try continues.

    Raises
    ------
    LakehouseError: when the object store refuses.
    """

    def copy(one: CopyOfFile) -> None:
        place = io.new_output(one.copy)
        if place.exists() and len(place) == one.original.file_size_in_bytes:
            return
        with io.new_input(one.original.file_path).open() as source, place.create(overwrite=True) as written:
            shutil.copyfileobj(source, written, _CHUNK_BYTES)

    with catalog_refusals("copy the files of the earlier content"), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(copy, copies))


def _places(files: Sequence[DataFile], folder: str) -> Iterator[str]:
    """Two writers may have given two files one name."""
    for number, file in enumerate(files):
        yield f"{folder}/{number:06d}-{PurePosixPath(file.file_path).name}"


def repeated_rows(
    catalog: Catalog, declarations: Declarations, table: str, refresh: RefreshObservation
) -> RepeatedRows:
    """What the readers of a table would get twice.

    Raises
    ------
    LakehouseError: when the table cannot be read.
    """
    history = tuple(history_of_main(require_table(catalog, table)))
    key = swap_key(refresh)
    since = tuple(takewhile(lambda snapshot: entries_of(snapshot).get(PUBLICATION_KEY) != key, history))
    return RepeatedRows(
        table=table,
        rows=sum(step_of(snapshot).appended_rows for snapshot in since),
        is_known=len(since) < len(history),
        readers=tuple(one for one in readers_of(declarations, table) if one.on_overwrite is not None),
    )
