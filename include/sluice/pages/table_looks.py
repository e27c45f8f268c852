"""What the catalog says of tables, for the pages: columns, partitions, newest snapshot, rows. No manifest is read.

A look is one request to the catalog, and is kept for a minute. The page of a table waits for its look; the page of all
tables shows what is known, and has the rest looked at behind it, one table after the other. `BoundedLooks` bounds this
and every other look of pages at the catalog and the object store, in time and in number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import BoundedSemaphore, Lock, Thread
from typing import TypeVar

from pyiceberg import types as iceberg
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.errors import LakehouseError
from sluice.processes.deadline import Deadline, NotDone, run_each
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table
from sluice.tables.table_observation import removed_rows

KEPT_SECONDS = 60.0
"""How old a look may be before another one is made."""

PROBLEM_KEPT_SECONDS = 10.0
"""How long it is kept that a table could not be looked at: the reason may be gone, and a dead catalog costs seconds."""

MOST_AGE_SECONDS = 600.0
"""An older look is not shown: the catalog has not answered since, and the table may be another one."""

FIRST_WAIT_SECONDS = 0.5
"""How long the page of all tables waits for tables that were never looked at: some dozens, on a catalog nearby."""

MOST_LOOKS = 4
"""How many looks of a kind one API server has at a time; a catalog that hangs holds no more of its threads."""

LOOK_SECONDS = 10.0
"""How long a person waits for the catalog and the object store; a look takes about a second at most."""

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedLooks:
    """Looks of one kind in one process. Safe to use from many threads.

    at: what is looked at, in the plural, for messages. seconds: how long a look may take.
    """

    at: str
    seconds: float = LOOK_SECONDS
    _places: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(MOST_LOOKS))

    def look(self, read: Callable[[Deadline], Seen]) -> Seen:
        """Read in a thread of its own, which is left behind when its time is over.

        Raises
        ------
        LakehouseError: when there is no answer in time, or as many looks as are allowed wait for one; and what `read`
            raises.
        """
        deadline = Deadline.after(self.seconds)
        seen = run_each({"look": lambda: self._read(read, deadline)}, at_once=1, deadline=deadline)["look"]
        if isinstance(seen, NotDone):
            raise LakehouseError(
                f"The catalog and the object store have not answered within {self.seconds:g} seconds.",
                next_step="See that they run (`sluice stack status` locally), then try again.",
            )
        if isinstance(seen, Exception):
            raise seen
        return seen

    def _read(self, read: Callable[[Deadline], Seen], deadline: Deadline) -> Seen:
        if not self._places.acquire(blocking=False):
            raise LakehouseError(
                f"{MOST_LOOKS} other looks at {self.at} have not ended yet.", next_step="Try again in a minute."
            )
        try:
            return read(deadline)
        finally:
            self._places.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedColumn:
    """A column, or a field inside one. path: as a query names it; `[]` stands for an element, `{}` for a value.

    added_in: the number of the schema that added it; unset for one of the first known schema. added_at: when rows were
    first committed with it; unset when that is not known.
    """

    path: str
    type: str
    is_required: bool
    doc: str
    added_in: int | None = None
    added_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLook:
    """A table as the catalog has it.

    problem: why nothing is known; the rest is empty then. exists: whether the catalog has it.
    snapshot_id, committed_at, operation: of its newest snapshot; unset before the first commit.
    fresh_at: when its rows last changed: not every commit changes some.
    rows: of the newest snapshot, also those that delete files hide; unset where its writer counted none.
    """

    problem: str = ""
    exists: bool = False
    columns: tuple[LookedColumn, ...] = ()
    partitions: tuple[str, ...] = ()
    snapshot_id: int | None = None
    committed_at: datetime | None = None
    operation: str = ""
    fresh_at: datetime | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    snapshots: int = 0


@dataclass(slots=True, kw_only=True)
class TableLooks:
    """The looks of one process. Safe to use from many threads.

    open: connects to the catalog. clock: seconds that only rise.
    """

    settings: Settings
    open: Callable[[Settings], Catalog] = open_catalog
    looks: BoundedLooks = field(default_factory=lambda: BoundedLooks(at="tables"))
    clock: Callable[[], float] = time.monotonic
    _kept: dict[str, tuple[float, TableLook]] = field(default_factory=dict)
    _is_passing: Lock = field(default_factory=Lock)

    def look(self, table: str) -> TableLook:
        """Look at one table now, or take the look that is kept."""
        if self._is_due(table):
            try:
                seen = self.looks.look(lambda _: look_at(load_table(self.open(self.settings), table)))
            except LakehouseError as error:
                seen = TableLook(problem=str(error))
            self._keep(table, seen)
        return self._kept[table][1]

    def known(self, tables: Sequence[str]) -> Mapping[str, TableLook]:
        """The looks that are kept, by table. What is missing or old is looked at behind this call."""
        due = [table for table in tables if self._is_due(table)]
        if due and self._is_passing.acquire(blocking=False):
            looking = Thread(target=self._pass, args=(due,), name="table-looks", daemon=True)
            looking.start()
            if any(table not in self._kept for table in due):
                looking.join(FIRST_WAIT_SECONDS)
        oldest = self.clock() - MOST_AGE_SECONDS
        kept = {table: self._kept[table] for table in tables if table in self._kept}
        return {table: look for table, (looked_at, look) in kept.items() if looked_at > oldest}

    def _is_due(self, table: str) -> bool:
        if table not in self._kept:
            return True
        looked_at, look = self._kept[table]
        return self.clock() - looked_at >= (PROBLEM_KEPT_SECONDS if look.problem else KEPT_SECONDS)

    def _keep(self, table: str, look: TableLook) -> None:
        self._kept[table] = (self.clock(), look)

    def _pass(self, tables: Sequence[str]) -> None:
        """Look at tables by one connection. When the catalog does not answer one, it is not asked for the rest."""
        left = list(tables)
        try:
            catalog = self.open(self.settings)
            while left:
                self._keep(left[0], look_at(load_table(catalog, left[0])))
                left.pop(0)
        except LakehouseError as error:
            for table in left:
                self._keep(table, TableLook(problem=str(error)))
        finally:
            self._is_passing.release()


_CHANGED_FILES = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")
"""What the summary of a commit counts. Source: https://iceberg.apache.org/spec/#optional-snapshot-summary-fields"""


def look_at(table: Table | None) -> TableLook:
    """What the metadata of a table says, as it was just loaded; none: the catalog does not have it. Pure."""
    if table is None:
        return TableLook()
    newest = table.current_snapshot()
    summary = {} if newest is None or newest.summary is None else newest.summary.additional_properties
    return TableLook(
        exists=True,
        columns=tuple(_columns(table)),
        partitions=tuple(_partitions(table)),
        snapshot_id=None if newest is None else newest.snapshot_id,
        committed_at=None if newest is None else _committed_at(newest),
        operation="" if newest is None or newest.summary is None else newest.summary.operation.value,
        fresh_at=_fresh_at(table, newest),
        rows=_count(summary, "total-records") if newest is not None else 0,
        files=_count(summary, "total-data-files") if newest is not None else 0,
        bytes=_count(summary, "total-files-size") if newest is not None else 0,
        snapshots=len(table.metadata.snapshots),
    )


def _count(summary: Mapping[str, str], name: str) -> int | None:
    counted = summary.get(name, "")
    return int(counted) if counted.isdigit() else None


def _committed_at(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def _fresh_at(table: Table, newest: Snapshot | None) -> datetime | None:
    """When the newest snapshot was committed that changed rows, as far back as snapshots are listed."""
    seen = newest
    while seen is not None and not _changes_rows(seen):
        seen = None if seen.parent_snapshot_id is None else table.snapshot_by_id(seen.parent_snapshot_id)
    return None if seen is None else _committed_at(seen)


def _changes_rows(snapshot: Snapshot) -> bool:
    """Not so a compaction, a removal of old rows, a batch of which no row was good, or the commit with which a stream
    opens its output. What does not say how many files it has changed may have changed rows."""
    summary = snapshot.summary
    if summary is None or summary.operation is Operation.REPLACE:
        return summary is None
    counts = summary.additional_properties
    if removed_rows(counts) is not None:
        return False
    return "total-data-files" not in counts or any(_count(counts, name) for name in _CHANGED_FILES)


def _columns(table: Table) -> Iterator[LookedColumn]:
    """The columns of the newest schema. Each field has an id for ever, so the first schema with it has added it."""
    schemas = sorted(table.schemas().items())
    born: dict[int, int] = {}
    for number, schema in schemas:
        for _, one in _fields(schema.fields):
            born.setdefault(one.field_id, number)
    for path, one in _fields(table.schema().fields):
        added_in = born.get(one.field_id, schemas[0][0])
        is_new = added_in != schemas[0][0]
        yield LookedColumn(
            path=path,
            type=type_words(one.field_type),
            is_required=one.required,
            doc=one.doc or "",
            added_in=added_in if is_new else None,
            added_at=_first_commit_with(table, added_in) if is_new else None,
        )


def _first_commit_with(table: Table, schema_id: int) -> datetime | None:
    """When rows were first committed with a schema; unset when a commit with an older one is not listed any more."""
    known = [one for one in table.metadata.snapshots if one.schema_id is not None]
    later = [one for one in known if one.schema_id is not None and one.schema_id >= schema_id]
    if not later or len(later) == len(known):
        return None
    return _committed_at(min(later, key=lambda one: one.timestamp_ms))


def _fields(fields: Iterable[iceberg.NestedField], before: str = "") -> Iterator[tuple[str, iceberg.NestedField]]:
    for one in fields:
        yield f"{before}{one.name}", one
        yield from _inside(one.field_type, f"{before}{one.name}")


def _inside(kind: iceberg.IcebergType, path: str) -> Iterator[tuple[str, iceberg.NestedField]]:
    if isinstance(kind, iceberg.StructType):
        yield from _fields(kind.fields, f"{path}.")
    elif isinstance(kind, iceberg.ListType):
        yield from _inside(kind.element_type, f"{path}[]")
    elif isinstance(kind, iceberg.MapType):
        yield from _inside(kind.value_type, f"{path}{{}}")


def type_words(kind: iceberg.IcebergType) -> str:
    """A type as a declaration writes it; the fields of a struct have lines of their own."""
    if isinstance(kind, iceberg.StructType):
        return "struct"
    if isinstance(kind, iceberg.ListType):
        return f"list<{type_words(kind.element_type)}>"
    if isinstance(kind, iceberg.MapType):
        return f"map<{type_words(kind.key_type)}, {type_words(kind.value_type)}>"
    return str(kind)


def _partitions(table: Table) -> Iterator[str]:
    """The parts of the partitioning: a column, or a transform of it."""
    schema = table.schema()
    for part in table.spec().fields:
        column, transform = schema.find_column_name(part.source_id) or "?", str(part.transform)
        if transform != "void":
            yield column if transform == "identity" else f"{transform}({column})"
