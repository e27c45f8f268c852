"""Which rows are to be erased: a condition over the columns of a table, or texts that a record contains.

A row is meant only when the condition is true for it, as in SQL: where it is unknown, because a value is null, the row
stays. Values of a condition are personal data: whatever is recorded has its digest alone, and no message repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, extract_field_ids, visit
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DoubleType, FloatType, NestedField, PrimitiveType, StringType

from sluice.erasure.condition_text import FORM, arrow_type, arrow_value, has_unseen, parse_condition
from sluice.errors import UsageError


class RowTest(Protocol):
    """Says of rows whether they are meant."""

    @property
    def digest(self) -> str:
        """Names the test without its values."""
        ...

    def columns_in(self, schema: Schema) -> tuple[NestedField, ...]:
        """The columns of a table that it looks at."""
        ...

    def meant(self, rows: pa.Table) -> Any:
        """Of each row whether it is meant: true or false. rows: with those columns, in `arrow_type` of each."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition in Iceberg's expression language. bound: holds its values, and is
    never printed."""

    digest: str
    bound: BooleanExpression = field(repr=False)
    fields: tuple[NestedField, ...]

    def columns_in(self, schema: Schema) -> tuple[NestedField, ...]:
        """The columns that the condition names."""
        return self.fields

    def meant(self, rows: pa.Table) -> Any:
        """Of each row whether the condition is true."""
        return pc.fill_null(visit(self.bound, _OfRows(rows.combine_chunks())), False)


def condition_of(text: str, schema: Schema, *, table: str) -> Condition:
    """Read a condition over the columns of a table.

    Raises
    ------
    UsageError: when it cannot be read, names what is no column of the table, compares a column with a value that
        is not exactly one of its type, or is true or false for every row.
    """
    bound = _bound(parse_condition(text, schema, table=table), schema, table=table)
    if isinstance(bound, AlwaysTrue | AlwaysFalse):
        which = "every row" if isinstance(bound, AlwaysTrue) else "no row"
        raise UsageError(
            f"The condition is true for {which} of {table}, whatever the rows are.",
            next_step="Name the rows by their values.",
        )
    named = extract_field_ids(bound)
    top = {one.field_id: one for one in schema.fields}
    if any(number not in top or not isinstance(top[number].field_type, PrimitiveType) for number in named):
        raise UsageError(
            f"The condition names a field inside a column of {table}.",
            next_step="Name columns of the table itself, of a plain type.",
        )
    fields = tuple(one for one in schema.fields if one.field_id in named)
    condition = Condition(digest=_digest(text), bound=bound, fields=fields)
    _try(condition, table=table)
    return condition


def _bound(parsed: BooleanExpression, schema: Schema, *, table: str) -> BooleanExpression:
    """The condition over the columns by their ids."""
    try:
        return bind(schema, parsed, case_sensitive=True)
    except (ValueError, TypeError) as error:
        raise _incomparable(table, error) from None
    except RecursionError:
        raise _too_long() from None


def _try(condition: Condition, *, table: str) -> None:
    """Compute it without a row, so that what cannot be computed is found before a file is read."""
    try:
        condition.meant(pa.table({one.name: pa.array([], arrow_type(one.field_type)) for one in condition.fields}))
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise _incomparable(table, error) from None
    except RecursionError:
        raise _too_long() from None


def _incomparable(table: str, error: Exception) -> UsageError:
    return UsageError(
        f"The condition compares a column of {table} with a value that is not of its type: {type(error).__name__}.",
        next_step=FORM,
    )


def _too_long() -> UsageError:
    return UsageError(
        "The condition has too many parts.", next_step="Write several values of a column as `id in (1, 2)`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts, one of which a column of the row contains, letter by letter."""

    texts: tuple[str, ...] = field(repr=False)

    @property
    def digest(self) -> str:
        """Names the texts without them."""
        return _digest("\0".join(sorted(self.texts)))

    def columns_in(self, schema: Schema) -> tuple[NestedField, ...]:
        """The columns that hold text or bytes."""
        return tuple(one for one in schema.fields if isinstance(one.field_type, StringType | BinaryType))

    def meant(self, rows: pa.Table) -> Any:
        """Of each row whether a column contains one of the texts."""
        found: Any = pa.array([False] * rows.num_rows, pa.bool_())
        for column in rows.columns:
            held: Any = column.combine_chunks().cast(pa.large_binary())
            for text in self.texts:
                pattern: Any = text.encode()
                has = pc.match_substring(held, pattern)
                found = pc.or_(found, pc.fill_null(has, False))
        return found


def texts_of(texts: Iterable[str]) -> Texts:
    """The texts that records contain.

    Raises
    ------
    UsageError: when one is so short that it is in records of others, too, or has what its reader does not see.
    """
    given = tuple(dict.fromkeys(texts))
    if any(len(one.strip()) < _SHORTEST for one in given):
        raise UsageError(
            f"A text of fewer than {_SHORTEST} characters is in records of others, too.",
            next_step="Give the whole value, such as a mail address.",
        )
    if any(one != one.strip() or has_unseen(one) for one in given):
        raise UsageError(
            "A text begins or ends with a blank, or has a character that cannot be seen, which records may lack.",
            next_step="Give it without them, one text a line.",
        )
    return Texts(texts=given)


_SHORTEST = 4


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


class _OfRows(BoundBooleanExpressionVisitor[Any]):
    """Of each row whether a condition is true, false, or unknown, which is null. Compared with a null, all is unknown,
    so that `not in` leaves such rows out. What is no number is above all numbers, as in Spark."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def visit_in(self, term: Any, literals: set[Any]) -> Any:
        """Whether the value is one of several."""
        column, kind = self._column(term), term.ref().field.field_type
        values = [arrow_value(one, kind).as_py() for one in literals]
        if _is_float(term) and 0.0 in values:
            values += [0.0, -0.0]  # they are equal, but not found by each other
        found = pc.is_in(column, value_set=pa.array(values, arrow_type(kind)))
        return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))

    def visit_not_in(self, term: Any, literals: set[Any]) -> Any:
        """Whether it is none of them."""
        return pc.invert(self.visit_in(term, literals))

    def visit_is_nan(self, term: Any) -> Any:
        """Whether it is no number."""
        return pc.is_nan(self._column(term))

    def visit_not_nan(self, term: Any) -> Any:
        """Whether it is a number."""
        return pc.invert(self.visit_is_nan(term))

    def visit_is_null(self, term: Any) -> Any:
        """Whether there is none."""
        return pc.is_null(self._column(term))

    def visit_not_null(self, term: Any) -> Any:
        """Whether there is one."""
        return pc.is_valid(self._column(term))

    def visit_equal(self, term: Any, literal: Any) -> Any:
        """Whether it is this one."""
        return pc.equal(self._column(term), self._value(term, literal))

    def visit_not_equal(self, term: Any, literal: Any) -> Any:
        """Whether it is another one."""
        return pc.not_equal(self._column(term), self._value(term, literal))

    def visit_greater_than_or_equal(self, term: Any, literal: Any) -> Any:
        """Whether it is this one, or above."""
        return self._or_nan(term, pc.greater_equal(self._column(term), self._value(term, literal)))

    def visit_greater_than(self, term: Any, literal: Any) -> Any:
        """Whether it is above."""
        return self._or_nan(term, pc.greater(self._column(term), self._value(term, literal)))

    def visit_less_than(self, term: Any, literal: Any) -> Any:
        """Whether it is below."""
        return pc.less(self._column(term), self._value(term, literal))

    def visit_less_than_or_equal(self, term: Any, literal: Any) -> Any:
        """Whether it is this one, or below."""
        return pc.less_equal(self._column(term), self._value(term, literal))

    def visit_starts_with(self, term: Any, literal: Any) -> Any:
        """Whether it begins so."""
        return pc.starts_with(self._column(term), self._value(term, literal).as_py())

    def visit_not_starts_with(self, term: Any, literal: Any) -> Any:
        """Whether it begins otherwise."""
        return pc.invert(self.visit_starts_with(term, literal))

    def visit_true(self) -> Any:
        """Every row."""
        return pa.array([True] * self._rows.num_rows, pa.bool_())

    def visit_false(self) -> Any:
        """No row."""
        return pa.array([False] * self._rows.num_rows, pa.bool_())

    def visit_not(self, child_result: Any) -> Any:
        """The others, but those of which it is unknown."""
        return pc.invert(child_result)

    def visit_and(self, left_result: Any, right_result: Any) -> Any:
        """Both."""
        return pc.and_kleene(left_result, right_result)

    def visit_or(self, left_result: Any, right_result: Any) -> Any:
        """One of both."""
        return pc.or_kleene(left_result, right_result)

    def _or_nan(self, term: Any, found: Any) -> Any:
        return pc.or_kleene(found, pc.is_nan(self._column(term))) if _is_float(term) else found

    def _column(self, term: Any) -> Any:
        found = self._rows.column(term.ref().field.name)
        return found.chunk(0) if found.num_chunks else pa.array([], found.type)

    @staticmethod
    def _value(term: Any, literal: Any) -> Any:
        return arrow_value(literal, term.ref().field.field_type)


def _is_float(term: Any) -> bool:
    return isinstance(term.ref().field.field_type, FloatType | DoubleType)
