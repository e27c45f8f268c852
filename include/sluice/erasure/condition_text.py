"""Reads a condition, and refuses what has two readings: whoever writes it has to get the rows that SQL gives.

The grammar is pyiceberg's, but for `like`, of which it knows `%` at the end alone and takes `_` for itself. pyiceberg
also converts values on the way to the type of a column: it rounds `1.5` for a whole number, takes a number for a day
since 1970, and the largest number for one above it. A value counts here only as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from math import isfinite
from struct import pack, unpack
from typing import Any
from unicodedata import category
from uuid import UUID

import pyarrow as pa
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    IsNaN,
    LiteralPredicate,
    Not,
    NotNaN,
    Or,
    SetPredicate,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions import parser as pyiceberg_parser
from pyiceberg.expressions.literals import DecimalLiteral, Literal, LongLiteral, StringLiteral
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyparsing import ParseException, ParserElement, ParseResults, Suppress, infix_notation, opAssoc

from sluice.errors import UsageError

FORM = (
    "Write it as `name = 'Ann'`, `id in (1, 2)`, `mail like 'ann@%' or mail is null`; text stands in single quotes, "
    "and a quote within it is written twice: `'O''Brien'`. See docs/guides/erasures.md."
)

_PATTERN = re.compile(r"((?:[^%_\\]|\\[%_])*)(%?)", re.DOTALL)
_DAY, _CLOCK, _NUMBER = r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?", r"[+-]?[0-9]+"
_WRITTEN: dict[type[IcebergType], str] = {
    BooleanType: "true|false|TRUE|FALSE",
    IntegerType: _NUMBER,
    LongType: _NUMBER,
    FloatType: rf"{_NUMBER}(\.[0-9]+)?",
    DoubleType: rf"{_NUMBER}(\.[0-9]+)?",
    DecimalType: rf"{_NUMBER}(\.[0-9]+)?",
    DateType: _DAY,
    TimeType: _CLOCK,
    TimestampType: f"{_DAY}T{_CLOCK}",
    TimestamptzType: rf"{_DAY}T{_CLOCK}[+-][0-9]{{2}}:[0-9]{{2}}",
    UUIDType: "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    StringType: r"[^\\]*",
}
"""How a text is written that stands for a value of a type. A backslash is itself in standard SQL and not in Spark's."""

_NUMBERS = (IntegerType, LongType, FloatType, DoubleType, DecimalType)


def has_unseen(text: str) -> bool:
    """Whether a text has a character that its reader does not see: a control character, or a mark of order."""
    return any(category(one) in {"Cc", "Cs", "Zl", "Zp"} or one == "\ufeff" for one in text)


def arrow_type(kind: IcebergType) -> Any:
    """How the values of a column are compared. PyArrow compares no uuid, but its bytes."""
    return pa.binary(16) if isinstance(kind, UUIDType) else schema_to_pyarrow(kind)


def arrow_value(literal: Any, kind: IcebergType) -> Any:
    """A value of a condition, to be compared with a column of this type."""
    value = literal.value if isinstance(literal, Literal) else literal
    return pa.scalar(value.bytes if isinstance(value, UUID) else value, arrow_type(kind))


def parse_condition(text: str, schema: Schema, *, table: str) -> BooleanExpression:
    """Read a condition over the columns of a table.

    Raises
    ------
    UsageError: when it cannot be read, names what is no column of the table, or compares a column with a value that is
        not one of its type as it is written.
    """
    if not text.strip():
        raise UsageError("The condition is empty.", next_step=FORM)
    if has_unseen(text.replace("\n", " ")):
        raise UsageError("The condition has a character that cannot be seen.", next_step=FORM)
    try:
        (parsed,) = _GRAMMAR.parse_string(text, parse_all=True)
        for predicate in _predicates(parsed):
            _require_exact(predicate, schema, table=table)
    except (ParseException, ValueError, TypeError, RecursionError) as error:
        place = f" near its character {error.loc + 1}" if isinstance(error, ParseException) else ""
        raise UsageError(f"The condition cannot be read{place}.", next_step=FORM) from None
    return parsed  # type: ignore[no-any-return]  # pyparsing does not know what its actions give


def _predicates(found: BooleanExpression) -> Iterator[UnboundPredicate]:
    """The comparisons of a condition."""
    left = [found]
    while left:
        one = left.pop()
        if isinstance(one, And | Or):
            left += [one.left, one.right]
        elif isinstance(one, Not):
            left.append(one.child)
        elif isinstance(one, UnboundPredicate):
            yield one


def _require_exact(predicate: UnboundPredicate, schema: Schema, *, table: str) -> None:
    try:
        field = predicate.term.bind(schema, case_sensitive=True).ref().field
    except ValueError:
        columns = ", ".join(one.name for one in schema.fields)
        raise UsageError(
            f"The condition names what is no column of {table}.",
            next_step=f"Its columns are {columns}; capital letters count.",
        ) from None
    kind = field.field_type
    is_right = True
    if isinstance(predicate, IsNaN | NotNaN):
        is_right = isinstance(kind, FloatType | DoubleType)
    elif isinstance(predicate, StartsWith):
        is_right = isinstance(kind, StringType)
    elif isinstance(predicate, LiteralPredicate | SetPredicate):
        literals = predicate.literals if isinstance(predicate, SetPredicate) else {predicate.literal}
        is_right = all(_is_exact(one, kind) for one in literals)
    if not is_right:
        raise UsageError(
            f"The condition compares the column {field.name} of {table} with a value that is not of its type, {kind}, "
            "or not exactly one of its values.",
            next_step="Write a time as `'2026-01-31T12:00:00'`, a decimal with all its places, and no backslash.",
        )


def _is_exact(literal: Literal[Any], kind: IcebergType) -> bool:
    """Whether a value is one of a type just as it is written."""
    if isinstance(literal, StringLiteral):
        written = _WRITTEN.get(type(kind))
        if written is None or re.fullmatch(written, literal.value, re.DOTALL) is None:
            return False
    try:
        value = literal.to(kind)
        arrow_value(value, kind)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        return False
    if not isinstance(kind, _NUMBERS):
        return not isinstance(literal, LongLiteral | DecimalLiteral)
    if not isinstance(kind, FloatType | DoubleType):
        return bool(Decimal(literal.value) == value.value)
    return _is_exact_float(literal, value.value, kind)


def _is_exact_float(literal: Literal[Any], value: float, kind: IcebergType) -> bool:
    """A fraction stands for the nearest number of 64 bits, as in SQL; one of 32 bits is compared with that."""
    if not isfinite(value) or (isinstance(literal, LongLiteral) and literal.value != value):
        return False
    written = float(literal.value)
    return value == written and (isinstance(kind, DoubleType) or unpack("<f", pack("<f", written))[0] == written)


def _like(result: ParseResults) -> BooleanExpression:
    found = _PATTERN.fullmatch(result.raw_quoted_string.value)
    if found is None:
        raise UsageError(
            "A pattern of `like` has `%` before its end, `_`, or a backslash.",
            next_step=r"`%` stands at its end alone. Write `\%` and `\_` for these characters themselves.",
        )
    text = StringLiteral(re.sub(r"\\([%_])", r"\1", found[1]))
    begins = StartsWith(term=result.column, value=text)
    return begins if found[2] else And(begins, EqualTo(term=result.column, value=text))


def _not_like(result: ParseResults) -> BooleanExpression:
    return Not(_like(result))


def _grammar() -> ParserElement:
    of = pyiceberg_parser
    like = (of.column + Suppress(of.LIKE) + of.string).set_parse_action(_like)
    not_like = (of.column + Suppress(of.NOT + of.LIKE) + of.string).set_parse_action(_not_like)
    predicate = of.between | of.comparison | of.in_check | of.null_check | of.nan_check | like | not_like | of.boolean
    levels: list[Any] = [
        (Suppress(of.NOT), 1, opAssoc.RIGHT, of.handle_not),
        (Suppress(of.AND), 2, opAssoc.LEFT, of.handle_and),
        (Suppress(of.OR), 2, opAssoc.LEFT, of.handle_or),
    ]
    notation: Any = infix_notation  # it has no types
    found: ParserElement = notation(predicate, levels).add_parse_action(of.handle_always_expression)
    return found


_GRAMMAR = _grammar()
