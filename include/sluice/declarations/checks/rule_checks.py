"""Checks the rules of streams and tables as far as that needs no Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.loaded_declarations import TABLE_SUFFIX, LoadedStream, LoadedTable
from sluice.declarations.rule_declaration import MOST_RULES, RuleDeclaration
from sluice.declarations.rule_kinds import UNIQUE_IN_TABLE, unfit_column
from sluice.declarations.scalar_types import listed
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
