"""Loaded declarations: each with its file and digest, the problems of the broken ones, and what follows from all of
them: the quarantines, the columns that are masked, and who looks a table up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from sluice.declarations.column_types import kind_of
from sluice.declarations.declaration_files import Document, KeyPath
from sluice.declarations.error_messages import did_you_mean
from sluice.declarations.maintenance_policy import LoadedPolicy, OwnMaintenance, PolicyValue
from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import PartitionField, TableColumn, TableDeclaration
from sluice.declarations.value_declaration import Column
from sluice.errors import DeclarationError, SluiceError, UsageError
from sluice.messages import Location

STREAM_SUFFIX = ".stream.yaml"
TABLE_SUFFIX = ".table.yaml"


def declared_name(file: Path) -> str:
    """The name of the stream or table that a file declares, from the file's name: a broken file has one too."""
    return file.name.removesuffix(STREAM_SUFFIX).removesuffix(TABLE_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedFile:
    """Where a declaration was read. digest: SHA-256 over the bytes that it depends on, in hexadecimal."""

    file: Path
    digest: str
    document: Document = field(repr=False, compare=False)

    @property
    def folder(self) -> Path:
        """The folder of the declaration; the transformation of a stream lies in it."""
        return self.file.parent

    def location(self, path: KeyPath = ()) -> Location:
        """File and line of the key at `path`."""
        return self.document.location(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStream(_LoadedFile):
    """A stream's declaration as it was written, with the columns that its schema files describe. The digest is that of
    the file, of the code beside it that a run executes, of its schema files and of the rules of its tables.

    rules: by output, the rules of its table and those of the stream. Outputs without rules are not among them.
    """

    declaration: StreamDeclaration
    rules: Mapping[str, tuple[RuleDeclaration, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.declaration.stream

    @property
    def transformation_file(self) -> Path:
        """The file that holds the transformation."""
        return self.folder / self.declaration.transformation.file_name

    @property
    def refuses_by_itself(self) -> bool:
        """Whether the platform itself rejects rows, so that the transformation need not return any."""
        rejects = any(rule.on_failure == "quarantine" for rules in self.rules.values() for rule in rules)
        return rejects or self.declaration.refuses_by_itself

    def with_rules(self, tables: Mapping[str, LoadedTable]) -> LoadedStream:
        """The stream with its rules. tables: the well-formed ones, by name."""
        found = {}
        for name, declared in self.declaration.outputs.items():
            table = tables.get(declared.iceberg.table) if declared.iceberg is not None else None
            of_table = table.declaration.rules if table is not None else ()
            found[name] = (*of_table, *(one for one in self.declaration.rules if one.output in (None, name)))
        texts = [rule.model_dump_json() for rules in found.values() for rule in rules]
        digest = sha256("\n".join((self.digest, *texts)).encode()).hexdigest() if texts else self.digest
        return replace(self, rules={name: rules for name, rules in found.items() if rules}, digest=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable(_LoadedFile):
    """A table's declaration, with the maintenance that holds for it. The digest is that of the file and of what it
    inherits.

    own: the maintenance that the file declares itself.
    """

    declaration: TableDeclaration
    own: OwnMaintenance

    def with_policy(self, policy: LoadedPolicy) -> LoadedTable:
        """The table with what it inherits."""
        held = policy.maintenance_of(self.own)
        if held == self.declaration.maintenance:
            return self
        digest = sha256(f"{self.digest}\n{held.model_dump_json()}".encode()).hexdigest()
        return replace(self, declaration=self.declaration.model_copy(update={"maintenance": held}), digest=digest)

    @property
    def name(self) -> str:
        """The table's name, `<namespace>.<table>`."""
        return self.declaration.table


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """All that was declared in a folder.

    streams, tables: the valid ones, by name. A file with a problem is in `broken` and not among them.
    problems: what is wrong, in the order of files and lines.
    stream_names, table_names: all that files declare, valid or broken, loaded or left out by `only`.
    policy: the maintenance that tables have in common.
    """

    folder: Path
    streams: Mapping[str, LoadedStream]
    tables: Mapping[str, LoadedTable]
    problems: tuple[DeclarationError, ...]
    stream_names: tuple[str, ...]
    table_names: tuple[str, ...]
    policy: LoadedPolicy = field(default_factory=LoadedPolicy)

    @property
    def broken(self) -> Mapping[Path, tuple[DeclarationError, ...]]:
        """The problems of each file that has any; `declared_name` gives the name that the file declares."""
        by_file: dict[Path, tuple[DeclarationError, ...]] = {}
        for problem in self.problems:
            file = problem.location.file
            by_file[file] = (*by_file.get(file, ()), problem)
        return MappingProxyType(by_file)

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of all valid declarations, in hexadecimal: it changes with each of them."""
        loaded: list[LoadedStream | LoadedTable] = [*self.streams.values(), *self.tables.values()]
        return sha256("".join(sorted(f"{one.name} {one.digest}\n" for one in loaded)).encode()).hexdigest()

    def stream(self, name: str) -> LoadedStream:
        """The stream of this name.

        Raises
        ------
        UsageError: when no file declares it; the message names those that exist.
        DeclarationError: when its file has a problem.
        """
        if name not in self.streams:
            raise self._absence(name, suffix=STREAM_SUFFIX, existing=self.stream_names)
        return self.streams[name]

    def table(self, name: str) -> LoadedTable:
        """The table of this name.

        Raises
        ------
        UsageError: when no file declares it; the message names those that exist.
        DeclarationError: when its file has a problem.
        """
        if name not in self.tables:
            raise self._absence(name, suffix=TABLE_SUFFIX, existing=self.table_names)
        return self.tables[name]

    def policy_of(self, name: str) -> tuple[PolicyValue, ...]:
        """The maintenance of a valid table, or of a quarantine, with where each value comes from."""
        table = self.tables.get(name)
        return self.policy.values_of(OwnMaintenance(table=name) if table is None else table.own)

    def require_valid(self) -> None:
        """Raise the first problem, if there is one.

        Raises
        ------
        DeclarationError: the first problem.
        """
        if self.problems:
            raise self.problems[0]

    def _absence(self, name: str, *, suffix: str, existing: tuple[str, ...]) -> SluiceError:
        for problem in self.problems:
            if problem.location.file.name == f"{name}{suffix}":
                return problem
        kind = "stream" if suffix == STREAM_SUFFIX else "table"
        return UsageError(
            f"No {kind} is called {name!r} in {self.folder}; declared are: {', '.join(existing) or 'none'}.",
            next_step=did_you_mean(name, existing),
        )


REASON_COLUMNS = (
    Column(name="reason", type="string", required=True, doc="why it was rejected, as a sentence"),
    Column(name="kind", type="string", doc="why, in a word of Sluice; null where the transformation says why"),
    Column(name="path", type="string", doc="the column or field that the reason is about"),
    Column(name="quotes_data", type="boolean", doc="whether the reason repeats data of the row; null if unknown"),
)
"""Why a row is rejected. A transformation may leave out all but the reason."""

REJECTED_COLUMNS = (
    *REASON_COLUMNS,
    Column(name="position", type="string", doc="where it stood in its source, as JSON"),
    Column(name="payload", type="string", doc="the row as it came"),
)
"""What a rejected row consists of, before it is known of which batch it is."""

_COLUMNS = (
    Column(name="stream", type="string", required=True, doc="the stream that rejected the row"),
    Column(name="generation", type="int", required=True, doc="the generation of the stream's checkpoint"),
    Column(name="batch", type="long", required=True, doc="the batch within the generation"),
    *REJECTED_COLUMNS,
    Column(name="refused_at", type="timestamptz", required=True, doc="when"),
    Column(name="resolved_at", type="timestamptz", doc="when it was resolved; null while it is open"),
    Column(name="resolution", type="string", doc="how: corrected by a backfill, replayed, or discarded by a person"),
    Column(name="resolved_by", type="string", doc="what resolved it: the key of a backfill, or who asked"),
)


def quarantine_declaration(stream: StreamDeclaration, policy: LoadedPolicy | None = None) -> TableDeclaration:
    """The declaration of the table that holds the rejected rows of a stream. policy: of the deployment, for its
    maintenance; unset: by the defaults."""
    policy = policy or LoadedPolicy()
    return TableDeclaration(
        table=stream.quarantine_table,
        description=f"Rows that the stream {stream.stream} refused, each with the reason.",
        owner=stream.owner,
        tags=("quarantine",),
        columns=tuple(map(TableColumn.of, _COLUMNS)),
        partitioning=(PartitionField(column="refused_at", transform="month"),),
        maintenance=policy.maintenance_of(OwnMaintenance(table=stream.quarantine_table)),
    )


def all_tables(declarations: Declarations) -> dict[str, TableDeclaration]:
    """Every valid table by name: the declared ones, then the quarantine of each stream that has one."""
    declared = {name: table.declaration for name, table in sorted(declarations.tables.items())}
    streams = (stream.declaration for _, stream in sorted(declarations.streams.items()))
    return declared | {
        stream.quarantine_table: quarantine_declaration(stream, declarations.policy)
        for stream in streams
        if stream.quarantine
    }


_BYTES = ("binary", "fixed")


def masked_columns_of_table(declarations: Declarations, table: str) -> frozenset[str]:
    """The columns whose values are not shown, in lower case.

    A column is masked when a stream that its rows came through masks one of its name, as a whole also for a field of
    it. Beside a masked column every column of bytes is, because the masked field may lie in it unseen.
    """
    masked = {name for stream in _led_through(declarations, table) for name in stream.masked_names}
    declared = all_tables(declarations).get(table)
    if not masked or declared is None:
        return frozenset(masked)
    of_bytes = {column.name.lower() for column in declared.columns if kind_of(column.column_type) in _BYTES}
    return frozenset(masked | of_bytes)


def _led_through(declarations: Declarations, table: str) -> Iterator[StreamDeclaration]:
    """The streams that write a table, and those that write what they read, and so on; a circle is walked once."""
    tables, seen = [table], {table}
    for reached in tables:  # it grows while it is walked through
        for stream in declarations.streams.values():
            declared = stream.declaration
            if reached in declared.tables_written or (declared.quarantine and reached == declared.quarantine_table):
                yield declared
                fresh = [one for one in declared.tables_read if one not in seen]
                seen |= set(fresh)
                tables += fresh


def lookups_of(declarations: Declarations, table: str) -> Iterator[str]:
    """The declared streams that look a table up as it is at each batch. Not those that look up a fixed state of it."""
    for name, stream in sorted(declarations.streams.items()):
        looked_up = [one.declared_source.source for one in stream.declaration.inputs.values() if not one.is_stream]
        tables = [one for one in looked_up if isinstance(one, IcebergSource) and one.table == table]
        if any(not one.is_fixed for one in tables):
            yield name
