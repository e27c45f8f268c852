"""Reads some rows of the files that a rewrite would write together, within a bound of bytes.

A rewrite orders the rows of one partition, and of a large one those of about 32 full files at a time. So the files
are grouped in the same way, and the rows of a group stay together.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.typedef import Record

from sluice.errors import LakehouseError
from sluice.layout.pruning import TableFilter, pruner_of
from sluice.tables.catalog import catalog_refusals

GROUPS_OF_A_FILTER = 8
"""How many groups are read at most of those that a condition selects by their partition."""

MOST_ROWS = 400_000
"""How many rows are kept at most; they are ordered once for each order that is tried."""

LEAST_ROWS_OF_A_FILE = 50
"""So many rows of each new file are needed: between two of them lies a fiftieth of what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """Files of one partition that a rewrite would write together. new_files: how many it would make of them."""

    files: tuple[DataFile, ...]
    new_files: int

    @property
    def bytes(self) -> int:
        """The bytes of its files."""
        return sum(file.file_size_in_bytes for file in self.files)

    @property
    def rows(self) -> int:
        """The rows in its files."""
        return sum(file.record_count for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGroup:
    """Some rows of a group, in the order of its files. is_whole: whether they are all that it has."""

    group: FileGroup
    rows: pa.Table
    is_whole: bool

    @property
    def is_enough(self) -> bool:
        """Whether the rows show where the new files would begin and end."""
        return self.is_whole or self.rows.num_rows >= self.group.new_files * LEAST_ROWS_OF_A_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSample:
    """What was read. files, bytes: of how many files, and roughly how many bytes of their columns."""

    groups: tuple[SampledGroup, ...]
    files: int
    bytes: int

    @property
    def rows(self) -> int:
        """How many rows were kept."""
        return sum(one.rows.num_rows for one in self.groups)


def groups_of(
    files: Sequence[DataFile], *, spec_id: int, target_file_bytes: int, group_files: int
) -> tuple[FileGroup, ...]:
    """The groups in which a rewrite would write files of the default partition spec.

    Parameters
    ----------
    files: in the order of the manifests.
    spec_id: of the default spec. target_file_bytes: of a good file. group_files: how many of them a group makes.
    """
    by_partition: dict[Record, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.spec_id == spec_id:
            by_partition[file.partition].append(file)
    return tuple(
        FileGroup(files=tuple(some), new_files=_new_files(some, target_file_bytes))
        for found in by_partition.values()
        for some in _packed(found, target_file_bytes * group_files)
    )


def _packed(files: Sequence[DataFile], most_bytes: int) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    size = 0
    for file in files:
        if group and size + file.file_size_in_bytes > most_bytes:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.file_size_in_bytes
    yield group


_LEAST_REST = 0.75


def _new_files(files: Sequence[DataFile], target_file_bytes: int) -> int:
    """As many full files as there are, and one for a rest that is not small."""
    full, rest = divmod(sum(file.file_size_in_bytes for file in files), target_file_bytes)
    return max(1, full + int(rest > _LEAST_REST * target_file_bytes))


def choose_groups(
    table: Table, groups: Sequence[FileGroup], filters: Sequence[TableFilter], *, seed: int
) -> tuple[FileGroup, ...]:
    """Groups for a sample: for each condition some of those that it selects by their partition.

    Parameters
    ----------
    seed: the same one chooses the same.
    """
    chance = random.Random(seed)  # noqa: S311  # no secret
    chosen: dict[int, FileGroup] = {}
    for condition in filters:
        is_selected = pruner_of(table, condition).judge_partition(table.spec().spec_id)
        selected = [place for place, one in enumerate(groups) if is_selected(one.files[0])]
        some = chance.sample(selected, min(len(selected), GROUPS_OF_A_FILTER))
        chosen.update({place: groups[place] for place in some})
    return tuple(chosen[place] for place in sorted(chosen))


def read_sample(
    table: Table, groups: Sequence[FileGroup], columns: Collection[str], *, most_bytes: int, seed: int
) -> RowSample:
    """Read columns of some files of each group, at least one, and keep some of their rows.

    Rows that delete files hide are read like others: they are in the files.

    Parameters
    ----------
    most_bytes: how many bytes of the columns are read at most, as the manifests have them. seed: as for the choice.

    Raises
    ------
    LakehouseError: when a file cannot be read.
    """
    chance = random.Random(seed)  # noqa: S311  # no secret
    schema = table.schema().select(*columns)
    fields = [field.field_id for field in schema.fields]
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    read: list[SampledGroup] = []
    files, size = 0, 0
    share = most_bytes // max(1, len(groups))
    most_rows = MOST_ROWS // max(1, len(groups))
    for group in groups:
        chosen = _within(group.files, fields, share, chance)
        rows = [_rows_of(table, scan, group.files[place]) for place in chosen]
        kept = _some(pa.concat_tables(rows), most_rows, chance)
        files += len(chosen)
        size += sum(_column_bytes(group.files[place], fields) for place in chosen)
        read.append(SampledGroup(group=group, rows=kept, is_whole=kept.num_rows >= group.rows))
    return RowSample(groups=tuple(read), files=files, bytes=size)


def _rows_of(table: Table, scan: ArrowScan, file: DataFile) -> pa.Table:
    with catalog_refusals(f"read {file.file_path}"):
        try:
            return _plain(scan.to_table([FileScanTask(file)]))
        except (pa.ArrowException, ValueError) as error:  # pyiceberg reads no other format than Parquet and ORC
            raise LakehouseError(f"{file.file_path} of {'.'.join(table.name())} cannot be read: {error}.") from error


def _plain(rows: pa.Table) -> pa.Table:
    """The rows with the bytes of uuids, which PyArrow orders; the uuids themselves it does not."""
    kinds = [kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind for kind in rows.schema.types]
    return rows.cast(pa.schema(list(zip(rows.column_names, kinds, strict=True))))


def _within(files: Sequence[DataFile], fields: Sequence[int], most_bytes: int, chance: random.Random) -> list[int]:
    """The places of files whose columns are within a bound, in their order; one at least."""
    chosen: list[int] = []
    left = most_bytes
    for place in chance.sample(range(len(files)), len(files)):
        size = _column_bytes(files[place], fields)
        if chosen and size > left:
            break
        chosen.append(place)
        left -= size
    return sorted(chosen)


def _column_bytes(file: DataFile, fields: Sequence[int]) -> int:
    sizes = file.column_sizes or {}
    known = [sizes[field] for field in fields if field in sizes]
    return sum(known) if len(known) == len(fields) else file.file_size_in_bytes


def _some(rows: pa.Table, most: int, chance: random.Random) -> pa.Table:
    """Some rows in their order, all parts alike."""
    if rows.num_rows <= most:
        return rows
    numbers = np.random.default_rng(chance.getrandbits(32)).choice(rows.num_rows, size=most, replace=False)
    return rows.take(np.sort(numbers))
