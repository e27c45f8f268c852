"""Checks rules, expectations and masked columns as far as that needs neither Spark nor Great Expectations.

A misspelt name of a masked column would mask nothing. The columns are known where a stream decodes its inputs itself,
and where a query reads files or declared tables. A Python function may put any text into the quarantine, and bytes that
are not decoded have any fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from sluice.declarations.column_types import ColumnType, ListType, MapType, PrimitiveType, StructType
from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.input_declaration import SourceDeclaration
from sluice.declarations.loaded_declarations import TABLE_SUFFIX, LoadedStream, LoadedTable
from sluice.declarations.rule_declaration import MOST_RULES, UNIQUE_IN_TABLE, RuleDeclaration, unfit_column
from sluice.declarations.scalar_types import listed
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.value_declaration import Column
from sluice.errors import DeclarationError


def rule_problems(
    stream: LoadedStream, tables: Mapping[str, LoadedTable], unreadable: Collection[str]
) -> Iterator[DeclarationError]:
    """What keeps the rules of a stream from being applied.

    Parameters
    ----------
    tables: the well-formed tables, by name. unreadable: the tables whose file is broken and may have rules.
    """
    declaration = stream.declaration
    if declaration.transformation.sql is not None and declaration.quarantine and not stream.refuses_by_itself:
        sentence = (
            "a query has one result, and nothing else rejects rows: no value is decoded, no line of a file goes to the "
            "quarantine, and no rule rejects any."
        )
        step = (
            "Write `on_malformed: quarantine` at an input of json or csv files, a rule with `on_failure: quarantine`, "
            "or a Python function; or leave `quarantine` out."
        )
        yield _problem(stream, ("transformation", "sql"), sentence, next_step=step)
    for name, declared in declaration.outputs.items():
        table = declared.iceberg.table if declared.iceberg is not None else None
        if table in unreadable:
            sentence = f"{table}{TABLE_SUFFIX} has a problem, so that the rules of {table} are unknown."
            yield _problem(stream, ("outputs", name, "iceberg", "table"), sentence, next_step="Correct that file.")
        yield from _of_output(stream, name, tables.get(table or ""))


def _of_output(stream: LoadedStream, output: str, table: LoadedTable | None) -> Iterator[DeclarationError]:
    rules, of_table = stream.rules.get(output, ()), table.declaration.rules if table is not None else ()
    if len(rules) > MOST_RULES:
        sentence = f"at most {MOST_RULES} rules, got {len(rules)} with those of the table."
        yield _problem(stream, ("outputs", output), sentence)
    known = {rule.name for rule in of_table}
    for index, rule in enumerate(stream.declaration.rules):
        if rule in rules and rule.name in known:
            yield _problem(stream, ("rules", index, "name"), f"the table has a rule {rule.name}, too.")
        if rule in rules and table is not None:
            yield from _unknown_columns(stream, index, rule, table)
    for rule in rules:
        place = ("rules", stream.declaration.rules.index(rule)) if rule not in of_table else ("outputs", output)
        for sentence, next_step in _obstacles(stream, output, rule):
            yield _problem(stream, place, f"the rule {rule.name} {sentence}.", next_step=next_step)


def _unknown_columns(
    stream: LoadedStream, index: int, rule: RuleDeclaration, table: LoadedTable
) -> Iterator[DeclarationError]:
    for argument, name in rule.columns:
        place: KeyPath = ("rules", index, "kwargs", *argument)
        column, known = table.declaration.column(name), [column.name for column in table.declaration.columns]
        if column is None:
            sentence = f"{table.name} has no column {name}; it has {listed(known)}."
            yield _problem(stream, place, sentence, next_step=did_you_mean(name, known))
        elif rule.is_of_batch and (problem := unfit_column(str(rule.type), rule.kwargs, column.column_type)):
            yield _problem(stream, place, f"{name} {problem}.")


def referenced_problems(
    loaded: LoadedStream | LoadedTable, tables: Mapping[str, LoadedTable], known: Collection[str]
) -> Iterator[DeclarationError]:
    """Rules about the values of another table that is not there, or has no such column.

    Parameters
    ----------
    tables: the well-formed tables, by name. known: the names of all tables.
    """
    for index, rule in enumerate(loaded.declaration.rules):
        if rule.referenced is None:
            continue
        (name, named), place = rule.referenced, ("rules", index, "kwargs", "table")
        if name not in known:
            yield _problem(loaded, place, f"no table {name} is declared.", next_step=did_you_mean(name, known))
        elif (table := tables.get(name)) is not None and table.declaration.column(named) is None:
            columns = [column.name for column in table.declaration.columns]
            sentence = f"{name} has no column {named}; it has {listed(columns)}."
            yield _problem(loaded, place, sentence, next_step=did_you_mean(named, columns))


def _obstacles(stream: LoadedStream, output: str, rule: RuleDeclaration) -> Iterator[tuple[str, str]]:
    """Why a stream cannot do what a rule asks for, each with the way out."""
    declaration = stream.declaration
    if declaration.hands_on_records:
        yield "needs batches, and this trigger hands records on one by one", "Use another trigger."
    if declaration.direct_output is not None:
        yield (
            "is evaluated before a batch is visible, and Iceberg's own sink makes it visible at once",
            "Write `delivery: staged`.",
        )
    if rule.is_of_batch and declaration.outputs[output].iceberg is None:
        yield "is about the rows that are staged for a table, and the output is none", "Leave it out."
    written = declaration.outputs[output].iceberg
    if rule.type in UNIQUE_IN_TABLE and written is not None and written.mode != "append":
        yield (
            f"compares a batch with the rows that its table keeps, and mode `{written.mode}` replaces rows",
            "Leave it out: a merge keeps one row for each of its `keys`.",
        )
    if rule.on_failure == "quarantine" and not declaration.quarantine:
        yield "sends rows to the quarantine, and the stream has none", "Write `quarantine: true`."
    elif not declaration.quarantine and not declaration.tables_written:
        yield "is counted where a table is staged, and the stream writes none", "Write `quarantine: true`."
    if rule.on_failure == "hold" and any(one.iceberg is None for one in declaration.outputs.values()):
        yield (
            "holds batches in their staging tables, and an output is no table",
            "Let a stream of its own write that output.",
        )
    if rule.on_failure == "hold" and declaration.publish_every is not None:
        yield "holds batches one by one, and `publish_every` publishes several together", "Leave `publish_every` out."


def _problem(
    loaded: LoadedStream | LoadedTable, path: KeyPath, sentence: str, *, next_step: str = ""
) -> DeclarationError:
    return DeclarationError(f"`{key_text(path)}`: {sentence}", location=loaded.location(path), next_step=next_step)


_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list", "column_set")
"""The arguments that name columns. Source: https://greatexpectations.io/expectations/"""


def unknown_expected_columns(table: LoadedTable) -> Iterator[DeclarationError]:
    """Expectations about columns that their table does not have.

    `expect_column_to_exist` and the like are left out: for them a missing column is an answer and no mistake.
    """
    known = dict.fromkeys(column.name for column in table.declaration.columns)
    for path, column in _named_columns(table):
        if column not in known:
            sentence = f"{table.name} has no column {column}; it has {listed(known)}."
            yield _problem(table, path, sentence, next_step=did_you_mean(column, known))


def _named_columns(table: LoadedTable) -> Iterator[tuple[KeyPath, str]]:
    quality = table.declaration.quality
    for index, expectation in enumerate(quality.expectations if quality is not None else ()):
        if expectation.type.startswith(("expect_table_", "expect_column_to_exist")):
            continue
        for argument in _COLUMN_ARGUMENTS:
            path: KeyPath = ("quality", "expectations", index, "kwargs", argument)
            named = expectation.kwargs.get(argument)
            for column in named if isinstance(named, list) else [named] if named is not None else []:
                yield path, str(column)


def unknown_expectations(tables: Iterable[LoadedTable]) -> tuple[DeclarationError, ...]:
    """Expectations of a type that the installed Great Expectations does not have; none when it is not installed.

    Each type is a file of its package `expectations/core`, so the names of the files are the types.
    """
    known = installed_expectations()
    if not known:
        return ()
    return tuple(
        _problem(
            table,
            path,
            f"Great Expectations has no expectation {kind}.",
            next_step=did_you_mean(kind, known) or "See https://greatexpectations.io/expectations/.",
        )
        for table in tables
        for path, kind in _types(table).items()
        if kind not in known
    )


def installed_expectations() -> frozenset[str]:
    """The types of expectations that are installed; empty without Great Expectations."""
    package = find_spec("great_expectations")
    folders = package.submodule_search_locations if package is not None else None
    files = (file for folder in folders or () for file in Path(folder, "expectations", "core").glob("expect_*.py"))
    return frozenset(file.stem for file in files)


def _types(table: LoadedTable) -> Mapping[KeyPath, str]:
    quality = table.declaration.quality
    return {
        ("quality", "expectations", index, "type"): expectation.type
        for index, expectation in enumerate(quality.expectations if quality is not None else ())
    }


def unknown_masked_columns(stream: LoadedStream, tables: Mapping[str, LoadedTable]) -> Iterator[DeclarationError]:
    """The masked columns that no quarantined record of a stream can have, each with its line.

    Parameters
    ----------
    tables: the declared tables, by name.
    """
    known = _columns_of(stream, tables)
    if known is None:
        return
    for index, path in enumerate(stream.declaration.masked_columns):
        problem = _path_problem(path.split("."), StructType(tuple(known.items())), of="")
        if problem is not None:
            sentence, allowed, given = problem
            place = ("masked_columns", index)
            yield _problem(stream, place, f"{sentence}.", next_step=did_you_mean(given, allowed))


def _columns_of(stream: LoadedStream, tables: Mapping[str, LoadedTable]) -> dict[str, ColumnType] | None:
    """The columns that quarantined records can have; none when they are not all known."""
    declaration, known = stream.declaration, dict[str, ColumnType]()
    for declared in declaration.inputs.values():
        if declared.is_stream:
            is_query = declaration.transformation.sql is not None
            columns = _columns_of_source(declared.declared_source, tables, is_query=is_query)
            if columns is None:
                return None
            known |= {column.name: column.column_type for column in columns}
    for output in declaration.outputs.values():
        feed = output.iceberg
        if feed is not None and feed.operation_column is not None:  # the whole change is put into the quarantine
            if feed.table not in tables:
                return None
            known |= {column.name: column.column_type for column in tables[feed.table].declaration.columns}
            known[feed.operation_column] = PrimitiveType("string")
    return known


def _columns_of_source(
    declared: SourceDeclaration, tables: Mapping[str, LoadedTable], *, is_query: bool
) -> Sequence[Column] | None:
    if declared.value is not None:
        return declared.value.columns or None
    if declared.files is not None and (is_query or declared.files.on_malformed == "quarantine"):
        return declared.files.columns or None
    source = declared.source
    if is_query and isinstance(source, IcebergSource) and source.table in tables:
        return tables[source.table].declaration.columns
    return None


def _path_problem(names: Sequence[str], kind: ColumnType, *, of: str) -> tuple[str, Sequence[str], str] | None:
    """What is wrong with a path, what is allowed in the place of which name; None when it leads somewhere.

    Parameters
    ----------
    names: the rest of the path, within a value of this type. of: the column or field with the value; empty at first.
    """
    if not names:
        return None
    match kind:
        case ListType(element):
            return _path_problem(names, element, of=of)
        case MapType(value=value):
            return _path_problem(names[1:], value, of=f"{of}.{names[0]}")
        case StructType(fields):
            known = dict(fields)
            if names[0] not in known:
                has = f"the field {of} has no field {names[0]}" if of else f"no input has a column {names[0]}"
                return f"{has}; {'it has' if of else 'there are'} {listed(known)}", list(known), names[0]
            return _path_problem(names[1:], known[names[0]], of=f"{of}.{names[0]}".removeprefix("."))
        case PrimitiveType("string"):
            return None  # it may be JSON itself
    return f"{of} has no fields, so that it is masked by its own name alone", [], names[0]
