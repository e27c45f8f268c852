"""What a person may change in a declaration, as a patch in YAML: columns when a sender has changed its schema, and
rules that the rows of a table meet today, with the evidence beside each. Pure.

Nothing is changed by itself: a patch is for a person to accept. That of a schema is made of the changes that were seen
and of the declaration as it is now. Rules are suggestions: what was true of all rows so far need not be what is right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import yaml

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.loaded_declarations import LoadedTable
from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.declarations.value_declaration import Column
from sluice.ledger.source_schemas import FieldChange, SourceSchema, input_of
from sluice.messages import one_line, unshowable_character

if TYPE_CHECKING:
    from sluice.tables.column_facts import ColumnFacts  # it imports PyArrow, and the values alone are read here

_TYPES = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "text": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
    "an instant in microseconds": "timestamptz",
    "an instant in milliseconds": "timestamptz",
    "a time without a zone in microseconds": "timestamp",
    "a time without a zone in milliseconds": "timestamp",
}
"""The type of a column by that of a field in the words of files; what is not here is a type of columns or unknown."""

_OF_COLUMNS = re.compile(r"(boolean|int|long|float|double|date|timestamp|timestamptz|string|uuid|binary|fixed\[\d+\])")
_DECIMAL = re.compile(r"decimal(?:128|256)?\((\d+), ?(-?\d+)\)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PREFIX = re.compile(r"^(required|optional) ")
_ID = re.compile(r", id \d+$")

MOST_CHANGES = 50
"""How many changes a patch has lines for; the others are counted."""


def patches_of(declaration: StreamDeclaration, schemas: Sequence[SourceSchema]) -> Mapping[str, str]:
    """The patches for the newest changes of the inputs of a stream, by the names under which their schemas are kept."""
    found = {one.input: patch_of(declaration, one.input, one.changes) for one in schemas}
    return {name: patch for name, patch in found.items() if patch}


def patch_of(declaration: StreamDeclaration, name: str, changes: Sequence[FieldChange]) -> str:
    """The patch of a stream's declaration for changes of the schema of an input; empty without a change.

    Parameters
    ----------
    name: the input, as its schema is kept.
    """
    declared = declaration.inputs.get(input_of(name))
    if not changes or declared is None:
        return ""
    lines = [f"# {declaration.stream}.stream.yaml: accept what is right, and delete the rest"]
    lines += _patch(declaration, declared, input_of(name), is_of_values=name != input_of(name), changes=changes)
    return "\n".join(map(one_line, lines))


def _patch(
    declaration: StreamDeclaration,
    declared: InputDeclaration,
    name: str,
    *,
    is_of_values: bool,
    changes: Sequence[FieldChange],
) -> Iterator[str]:
    source = declared.declared_source
    # A table with values has a schema of its own, which no declaration repeats.
    value = None if isinstance(source.source, IcebergSource) and not is_of_values else source.value
    holder = value if value is not None else source.files
    if holder is None:
        yield f"# The input {name} has no columns of its own: those of its source are read when a run starts."
        yield from _comments(changes)
    elif holder.schema_file is not None:
        yield f"# Put the sender's schema into {holder.schema_file}, which the input {name} is read with."
        yield from _comments(changes)
    elif value is not None and value.subject is not None:
        version = "the newest version" if value.version is None else f"version {value.version}"
        yield f"# The input {name} is read with {version} of {value.subject} since the run began."
        yield from _comments(changes)
    else:
        yield "inputs:"
        yield f"  {name}:"
        yield f"    {'stream' if declared.stream is not None else 'static'}:"
        yield f"      {source.kind}:"
        margin = "        "
        if value is not None:
            yield f"{margin}value:"
            margin += "  "
        yield f"{margin}columns:"
        yield from (f"{margin}  {line}" for line in _columns(holder.columns, changes))
    if any(not one.was for one in changes):
        yield f"# A new column is published once the transformation selects it and {_tables(declaration)} has it."


def _tables(declaration: StreamDeclaration) -> str:
    return " or ".join(declaration.tables_written) or "the output"


def _comments(changes: Sequence[FieldChange]) -> Iterator[str]:
    yield from (f"# {change}" for change in changes[:MOST_CHANGES])
    yield from _rest(changes)


def _rest(changes: Sequence[FieldChange]) -> Iterator[str]:
    if len(changes) > MOST_CHANGES:
        yield f"# and {len(changes) - MOST_CHANGES:,} more changes"


def _columns(columns: Sequence[Column], changes: Sequence[FieldChange]) -> Iterator[str]:
    known = {column.name.lower(): column for column in columns}
    for change in changes[:MOST_CHANGES]:
        column, found = known.get(change.field.lower()), type_of(change.now)
        if "." in change.field:
            yield f"# {change}: it lies in a column of which the type is to be changed"
        elif not change.now and column is None:
            yield f"# {change}, and was not declared"
        elif not change.now:
            is_required = column is not None and column.required
            why = "a record without it is rejected: leave `required` out" if is_required else "it is null from now on"
            yield f"# {change}: {why}, or delete the column"
        elif found is None:
            yield f"# {change}: no single column has this type"
        elif _NAME.fullmatch(change.field) is None:
            yield f"# {change}: it is no name of a column, which may take it by `field`"
        elif column is not None and column.type == found:
            yield f"# {change}: the declared {found} stays"
        else:
            yield f"- {{name: {change.field}, type: {found}}}  # {_evidence(change)}"
    yield from _rest(changes)


def _evidence(change: FieldChange) -> str:
    return f"was {change.was}, is {change.now}" if change.was else f"new: {change.now}"


def type_of(words: str) -> str | None:
    """The type of a column that takes a field of a type in words; none when no single one does."""
    plain = _ID.sub("", _PREFIX.sub("", words))
    if (found := _TYPES.get(plain)) is not None:
        return found
    if (decimal := _DECIMAL.fullmatch(plain)) is not None:
        return f'"decimal({decimal[1]}, {decimal[2]})"'
    return plain if _OF_COLUMNS.fullmatch(plain) else None


FEWEST_ROWS = 100
"""A table with fewer rows says too little."""

_FEWEST_OF_A_VALUE = 20
"""So many sampled values for each distinct one, before the distinct ones are taken for all that there are."""

_OF_TEXTS = (
    "expect_column_values_to_be_in_set",
    "expect_column_values_to_match_regex",
    "expect_column_value_lengths_to_be_between",
    "expect_column_value_lengths_to_equal",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedRule:
    """An expectation that holds now. evidence: why, in a sentence."""

    type: str
    kwargs: Mapping[str, Any]
    evidence: str


def suggest_rules(
    declared: TableDeclaration,
    facts: Iterable[ColumnFacts],
    *,
    masked: Collection[str],
    rules: Iterable[RuleDeclaration] = (),
) -> tuple[SuggestedRule, ...]:
    """What holds of the columns and is not declared yet, neither as an expectation nor as a rule.

    Parameters
    ----------
    masked: columns in lower case whose values are not shown: of them nothing is suggested that repeats a value.
    rules: those by which batches of the table are judged. A condition in SQL is not compared.
    """
    expectations = declared.quality.expectations if declared.quality is not None else ()
    known = {(one.type, one.kwargs.get("column")) for one in expectations}
    known |= {(one.type, one.kwargs.get("column")) for one in rules if one.type is not None}
    required = {column.name for column in declared.columns if column.required}
    return tuple(
        rule
        for one in facts
        if one.rows >= FEWEST_ROWS
        for rule in _of_column(one, is_masked=one.name.lower() in masked, is_required=one.name in required)
        if not any((kind, one.name) in known for kind in _instead_of(rule.type))
    )


def _instead_of(kind: str) -> tuple[str, ...]:
    """What makes a suggestion needless where it is declared: the same, or what says as much about a text."""
    return _OF_TEXTS if kind in _OF_TEXTS else (kind,)


def _of_column(facts: ColumnFacts, *, is_masked: bool, is_required: bool) -> Iterator[SuggestedRule]:
    column = {"column": facts.name}
    if facts.nulls == 0 and not is_required:
        evidence = f"none of {facts.rows:,} rows is null, by the counts of all files"
        yield SuggestedRule(type="expect_column_values_to_not_be_null", kwargs=column, evidence=evidence)
    if not is_masked:
        yield from _of_bounds(facts)
        yield from _of_sample(facts)


def _of_bounds(facts: ColumnFacts) -> Iterator[SuggestedRule]:
    """Of times the earliest alone: later ones come with the next rows."""
    lowest, highest = facts.lowest, facts.highest
    if lowest is None or highest is None:
        return
    bounds: dict[str, Any]
    if isinstance(lowest, date) or isinstance(highest, date):
        bounds = {"min_value": str(lowest)}
        evidence = f"the bounds of all files of {facts.rows:,} rows, {lowest} to {highest}; later ones may follow"
    elif math.isfinite(lowest) and math.isfinite(highest):
        bounds = {"min_value": lowest, "max_value": highest}
        evidence = f"the bounds of all files of {facts.rows:,} rows; widen them where other values are right"
    else:
        return
    kwargs = {"column": facts.name, **bounds}
    yield SuggestedRule(type="expect_column_values_to_be_between", kwargs=kwargs, evidence=evidence)


def _of_sample(facts: ColumnFacts) -> Iterator[SuggestedRule]:
    """The narrowest of these alone: few distinct values, one pattern, the lengths of texts. Nothing where one holds a
    character that no declaration may hold."""
    if any(unshowable_character(str(text)) is not None for text in (*facts.values, facts.pattern)):
        return
    others = f"among {facts.sampled:,} of a sample; other rows were not read"
    if facts.values and facts.sampled >= _FEWEST_OF_A_VALUE * len(facts.values):
        yield SuggestedRule(
            type="expect_column_values_to_be_in_set",
            kwargs={"column": facts.name, "value_set": list(facts.values)},
            evidence=f"{len(facts.values)} distinct values {others}",
        )
    elif facts.sampled < FEWEST_ROWS:
        return
    elif facts.pattern:
        yield SuggestedRule(
            type="expect_column_values_to_match_regex",
            kwargs={"column": facts.name, "regex": facts.pattern},
            evidence=f"all are built alike {others}",
        )
    elif facts.longest is not None:
        yield SuggestedRule(
            type="expect_column_value_lengths_to_be_between",
            kwargs={"column": facts.name, "min_value": facts.shortest, "max_value": facts.longest},
            evidence=f"{facts.shortest} to {facts.longest} characters {others}",
        )


def as_patch(loaded: LoadedTable, rules: Sequence[SuggestedRule]) -> str:
    """The rules in the YAML of a table's declaration, each below its evidence; a comment says where they belong.

    A declaration without `quality` gets one. Otherwise they are further items of its list; where that is written in
    one line, it comes with what it has.
    """
    quality, document = loaded.declaration.quality, loaded.document
    name = document.file.name
    advice = "accept what is right, and delete the rest"
    if quality is None:
        return "\n".join((f"# {name}: {advice}", "quality:", "  expectations:", *_items(rules, indent=4)))
    lines = document.lines
    first = document.text.decode().splitlines()[lines["quality", "expectations", 0] - 1]
    if first.lstrip().startswith("- "):
        indent = len(first) - len(first.lstrip())
        below = lines["quality", "expectations"]
        return "\n".join((f"# {name}: insert below line {below}; {advice}", *_items(rules, indent=indent)))
    declared = [f"    - {_in_one_line(one.model_dump(mode='json'))}" for one in quality.expectations]
    more = ["  on_publication: true"] if quality.on_publication else []
    items = ("quality:", *more, "  expectations:", *declared, *_items(rules, indent=4))
    return "\n".join((f"# {name}: in the place of `quality` in line {lines['quality',]}; {advice}", *items))


def _items(rules: Iterable[SuggestedRule], *, indent: int) -> Iterator[str]:
    margin = " " * indent
    for rule in rules:
        yield f"{margin}# {rule.evidence}"
        yield f"{margin}- type: {rule.type}"
        yield f"{margin}  kwargs: {_in_one_line(rule.kwargs)}"


def _in_one_line(values: Mapping[str, Any]) -> str:
    """As YAML of one line that every reader takes for the same values: JSON writes 1e-07, which is a text there."""
    return yaml.safe_dump(dict(values), default_flow_style=True, width=math.inf, sort_keys=False).strip()
