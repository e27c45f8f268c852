"""Loads a folder of declarations: every `<stream>.stream.yaml` and `<namespace>.<table>.table.yaml` in it, and the
`maintenance.yaml` of all tables.

The columns of schema files become a part of the declarations that name them. A broken file never hides another one: it
becomes a problem, and everything else loads. Nothing here imports pyspark or pyiceberg, and no user code is executed:
DAG files call it whenever Airflow parses them. A process that lives long loads them again when a file has changed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sluice.declarations.checks.cross_checks import find_problems
from sluice.declarations.checks.shared_places import retention_problems
from sluice.declarations.declaration_files import (
    LARGEST_CODE_BYTES,
    Document,
    KeyPath,
    UnreadableFileError,
    read_bounded,
    read_document,
)
from sluice.declarations.error_messages import declaration_errors, did_you_mean, key_text
from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.loaded_declarations import (
    STREAM_SUFFIX,
    TABLE_SUFFIX,
    Declarations,
    LoadedStream,
    LoadedTable,
    declared_name,
)
from sluice.declarations.maintenance_policy import (
    POLICY_FILE,
    LoadedPolicy,
    OwnMaintenance,
    PolicyDeclaration,
    shared_column_problems,
)
from sluice.declarations.schema_files import LARGEST_SCHEMA_BYTES, avro_columns, read_columns, read_schema
from sluice.declarations.stream_declaration import QUARANTINE_NAMESPACE, StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.declarations.value_declaration import RECORD_COLUMN, Column
from sluice.errors import DeclarationError
from sluice.messages import Location

LARGEST_FILE_BYTES = 1024**2
"""A declaration is a page or two; something larger is a mistake that would slow down every DAG parse."""

LOOK_SECONDS = 5.0
"""How old an answer of `DeclaredNow` may be. Looking at the files of 200 streams takes milliseconds; loading them takes
a second."""

_MISNAMED_SUFFIXES = (".stream.yml", ".table.yml", ".streams.yaml", ".tables.yaml", ".streams.yml", ".tables.yml")
_POLICY_NAMES = (POLICY_FILE, "maintenance.yml")
_WITHOUT_A_NAME = ("stream.yaml", "table.yaml", "stream.yml", "table.yml")

_SET_IT = "Set SLUICE_PIPELINES to the folder of the declarations, or create it."

Model = TypeVar("Model", bound=BaseModel)
Signature = frozenset[tuple[str, int, int]]


def load_declarations(folder: Path, *, only: str | None = None) -> Declarations:
    """Read and check every declaration below a folder.

    Parameters
    ----------
    folder: where the declarations lie, with folders of their own as deep as wanted; hidden ones are left out.
    only: the one stream or table that is needed. Then only its file and those of the tables it names are read, and
        what can only be seen by comparing streams is not checked.

    Returns
    -------
    The valid declarations, and the problems of the others. A broken file raises nothing.
    """
    problems: list[DeclarationError] = []
    files = sorted(_declaration_files(folder, problems))
    policy_file, table_names = folder / POLICY_FILE, _names(files, TABLE_SUFFIX)
    known = (STREAM_SUFFIX, TABLE_SUFFIX)
    problems += [_misnamed(file) for file in files if not file.name.endswith(known) and file != policy_file]
    policy, found = _load_policy(policy_file, table_names) if policy_file in files else (LoadedPolicy(), ())
    problems += found
    streams: list[LoadedStream] = []
    tables: list[LoadedTable] = []
    for file in _stream_files(files, only):
        stream, found = _load_stream(file)
        streams += [stream] if stream else []
        problems += found
    unreadable: set[str] = set()
    for file in _table_files(files, only, streams):
        table, found = _load_table(file)
        tables += [table.with_policy(policy)] if table else []
        unreadable |= {declared_name(file)} if table is None and _may_have_rules(file) else set()
        problems += found
    by_name = {table.name: table for table in tables}
    streams = [stream.with_rules(by_name) for stream in streams]
    problems += find_problems(streams=streams, tables=tables, table_names=table_names, unreadable=unreadable)
    refused = tuple(retention_problems(streams, tables, policy))
    policy = replace(policy, kept_whole=frozenset(name for name, one in refused if one.location.file == policy_file))
    tables = [table.with_policy(policy) if table.name in policy.kept_whole else table for table in tables]
    problems += [problem for _, problem in refused]
    if only is None and len(tables) == len(table_names):
        problems += shared_column_problems(policy, [table.own for table in tables])
    broken = {problem.location.file for problem in problems}
    return Declarations(
        folder=folder,
        streams=MappingProxyType({stream.name: stream for stream in streams if stream.file not in broken}),
        tables=MappingProxyType({table.name: table for table in tables if table.file not in broken}),
        problems=tuple(sorted(problems, key=_place)),
        stream_names=_names(files, STREAM_SUFFIX),
        table_names=table_names,
        policy=policy,
    )


def _names(files: Iterable[Path], suffix: str) -> tuple[str, ...]:
    return tuple(sorted({declared_name(file) for file in files if file.name.endswith(suffix)}))


def _declaration_files(folder: Path, problems: list[DeclarationError]) -> Iterator[Path]:
    """The files whose names say that they declare something; what is overlooked is added to the problems."""

    def note(error: OSError) -> None:
        problems.append(_at(Path(error.filename), f"the folder cannot be read: {error.strerror}.", next_step=_SET_IT))

    for parent, folders, names in os.walk(folder, onerror=note):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        problems += [_linked(Path(parent, name)) for name in folders if Path(parent, name).is_symlink()]
        problems += [_folder_named_like_a_file(Path(parent, name)) for name in folders if _declares(name)]
        yield from (Path(parent, name) for name in names if _declares(name) and not name.startswith("."))


def _declares(name: str) -> bool:
    """Whether a file of this name declares something, or was meant to."""
    lowered = name.lower()
    return lowered.endswith((STREAM_SUFFIX, TABLE_SUFFIX, *_MISNAMED_SUFFIXES)) or lowered in (
        *_WITHOUT_A_NAME,
        *_POLICY_NAMES,
    )


def _stream_files(files: Iterable[Path], only: str | None) -> Iterator[Path]:
    for file in files:
        if file.name.endswith(STREAM_SUFFIX) and only in (None, declared_name(file)):
            yield file


def _table_files(files: Iterable[Path], only: str | None, streams: Iterable[LoadedStream]) -> Iterator[Path]:
    named = {only}.union(*(stream.declaration.tables_named for stream in streams))
    for file in files:
        if file.name.endswith(TABLE_SUFFIX) and (only is None or declared_name(file) in named):
            yield file


def _load_stream(file: Path) -> tuple[LoadedStream | None, tuple[DeclarationError, ...]]:
    text, document, errors = _read(file)
    if document is None:
        return None, errors
    declaration, errors = _validate(document, StreamDeclaration)
    if declaration is None:
        return None, errors
    digest = hashlib.sha256(text)
    for name in declaration.code_files:
        digest.update(_code(file.parent / name))
    declaration, errors = with_columns_of_files(declaration, document, folder=file.parent, digest=digest.update)
    if errors:
        return None, errors
    return LoadedStream(declaration=declaration, file=file, digest=digest.hexdigest(), document=document), ()


def _code(file: Path) -> bytes:
    try:
        return read_bounded(file, most_bytes=LARGEST_CODE_BYTES)
    except UnreadableFileError:
        return b""  # that it is missing is found, and said with its line, when declarations are checked


def _may_have_rules(file: Path) -> bool:
    """Whether a broken file of a table may declare rules, which its streams then do not know."""
    try:
        return b"rules" in read_bounded(file, most_bytes=LARGEST_FILE_BYTES)
    except UnreadableFileError:
        return True


def _load_table(file: Path) -> tuple[LoadedTable | None, tuple[DeclarationError, ...]]:
    text, document, errors = _read(file)
    if document is None:
        return None, errors
    declaration, errors = _validate(document, TableDeclaration)
    if declaration is None:
        return None, errors
    digest = hashlib.sha256(text).hexdigest()
    own = OwnMaintenance(
        table=declaration.table,
        declared=declaration.maintenance,
        is_sorted=bool(declaration.sort_order),
        z_orderable=declaration.z_orderable,
        countable=declaration.countable,
        times=declaration.partition_times,
        document=document,
    )
    return LoadedTable(declaration=declaration, own=own, file=file, digest=digest, document=document), ()


def _load_policy(file: Path, tables: Iterable[str]) -> tuple[LoadedPolicy, tuple[DeclarationError, ...]]:
    """The policy of a deployment, and what is wrong with it. tables: all that are declared, by name."""
    _, document, errors = _read(file)
    if document is None:
        return LoadedPolicy(is_broken=True), errors
    declaration, errors = _validate(document, PolicyDeclaration)
    if declaration is None:
        return LoadedPolicy(is_broken=True), errors
    known = sorted({QUARANTINE_NAMESPACE, *(name.partition(".")[0] for name in tables)})
    unknown = tuple(
        DeclarationError(
            f"`{key_text(path)}`: no table is declared in this namespace; there are: {', '.join(known)}.",
            location=document.location(path),
            next_step=did_you_mean(path[1], known),
        )
        for path in (("namespaces", name) for name in declaration.namespaces)
        if path[1] not in known
    )
    return LoadedPolicy(declaration=declaration, document=document, is_broken=bool(unknown)), unknown


def _read(file: Path) -> tuple[bytes, Document | None, tuple[DeclarationError, ...]]:
    try:
        text = read_bounded(file, most_bytes=LARGEST_FILE_BYTES)
        return text, read_document(text, file=file), ()
    except UnreadableFileError as error:
        return b"", None, (_at(file, f"{str(error).replace('it ', 'the file ', 1)}."),)
    except DeclarationError as error:
        return b"", None, (error,)


def _validate(document: Document, model: type[Model]) -> tuple[Model | None, tuple[DeclarationError, ...]]:
    try:
        return model.model_validate(document.content), ()
    except ValidationError as error:
        return None, declaration_errors(error, document=document, model=model)


def _misnamed(file: Path) -> DeclarationError:
    if file.name.lower() in _POLICY_NAMES:
        return _at(
            file,
            f"the maintenance of all tables is declared in {POLICY_FILE} in the top folder; this one is overlooked.",
            next_step="Move or rename the file.",
        )
    return _at(
        file,
        f"a declaration's file ends in {STREAM_SUFFIX} or {TABLE_SUFFIX}; under this name it would be overlooked.",
        next_step="Rename the file.",
    )


def _linked(folder: Path) -> DeclarationError:
    return _at(
        folder,
        "this folder is a link, which is not followed: what it declares would be overlooked.",
        next_step="Link or copy the files into a folder here.",
    )


def _folder_named_like_a_file(folder: Path) -> DeclarationError:
    return _at(folder, "this is a folder, and its name is that of a declaration's file.", next_step="Rename it.")


def _at(file: Path, problem: str, *, next_step: str = "") -> DeclarationError:
    return DeclarationError(problem, location=Location(file=file, line=1), next_step=next_step)


def _place(problem: DeclarationError) -> tuple[str, int]:
    return str(problem.location.file), problem.location.line or 0


def with_columns_of_files(
    declaration: StreamDeclaration, document: Document, *, folder: Path, digest: Callable[[bytes], None]
) -> tuple[StreamDeclaration, tuple[DeclarationError, ...]]:
    """The declaration with columns in place of each `schema_file`, and what is wrong with those files.

    Parameters
    ----------
    document: the declaration's file, for places. folder: where it lies; schema files lie in it.
    digest: takes the bytes of every schema file: a change of it is a change of the stream.
    """
    inputs, errors = dict(declaration.inputs), []
    for name, declared in declaration.inputs.items():
        path, file = _schema_file(declared)
        if file is None:
            continue
        path = ("inputs", name, *path)
        try:
            columns = _columns(folder / file, declared)
            digest(read_bounded(folder / file, most_bytes=LARGEST_SCHEMA_BYTES))
        except ValueError as error:
            sentence = f"`{key_text(path)}`: {file} cannot be used: {_reason(error)}."
            errors.append(DeclarationError(sentence, location=document.location(path)))
        else:
            inputs[name] = _with_columns(declared, columns)
    return declaration.model_copy(update={"inputs": inputs}), tuple(errors)


def _schema_file(declared: InputDeclaration) -> tuple[KeyPath, str | None]:
    """Where in an input a schema file is named, and which; none for most."""
    way, source = "stream" if declared.is_stream else "static", declared.declared_source
    if source.value is not None:
        return (way, source.kind, "value", "schema_file"), source.value.schema_file
    return (way, "files", "schema_file"), source.files.schema_file if source.files is not None else None


def _columns(file: Path, declared: InputDeclaration) -> tuple[Column, ...]:
    """The columns of a schema file, once it is one by which the input's values can be read."""
    value = declared.declared_source.value
    if value is not None and value.format == "avro" and (value.registry is None or file.suffix == ".avsc"):
        columns = avro_columns(read_schema(file))
    else:
        columns = read_columns(file, message=value.message if value is not None else None)
    if value is not None and RECORD_COLUMN in (column.name for column in columns):
        raise ValueError(f"it has a field `{RECORD_COLUMN}`, which is where the record itself lies")
    return columns


def _with_columns(declared: InputDeclaration, columns: tuple[Column, ...]) -> InputDeclaration:
    way = "stream" if declared.is_stream else "static"
    source = declared.declared_source
    update: dict[str, BaseModel] = {}
    if source.value is not None:
        value = source.value.model_copy(update={"columns": columns})
        update[source.kind] = source.source.model_copy(update={"value": value})
    elif source.files is not None:
        update["files"] = source.files.model_copy(update={"columns": columns})
    return declared.model_copy(update={way: source.model_copy(update=update)})


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"the column's {first['loc'][-1]} {first['input']!r} is refused: {first['msg']}"
    return str(error)


@dataclass(slots=True)
class DeclaredNow:
    """The declarations of a folder. Safe to use from many threads; one of them loads.

    clock: seconds that only rise.
    """

    folder: Path
    clock: Callable[[], float] = time.monotonic
    _lock: Lock = field(default_factory=Lock)
    _signature: Signature | None = None
    _declarations: Declarations | None = None
    _looked_at: float = 0.0

    def read(self) -> Declarations:
        """The declarations, at most `LOOK_SECONDS` old."""
        with self._lock:
            known = self._declarations
            if known is not None and self.clock() - self._looked_at < LOOK_SECONDS:
                return known
            signature = frozenset(_files_below(self.folder))
            if known is None or signature != self._signature:
                known = load_declarations(self.folder)
            self._declarations, self._signature, self._looked_at = known, signature, self.clock()
            return known


def _files_below(folder: Path) -> list[tuple[str, int, int]]:
    """Every file with its time and size: code and schema files belong to a declaration as well."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118  # thousands of paths: `Path` takes ten times as long
            try:
                seen = os.stat(path)  # noqa: PTH116
            except OSError:
                continue
            found.append((path, seen.st_mtime_ns, seen.st_size))
    return found
