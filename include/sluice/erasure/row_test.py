"""Which rows are to be erased: a condition over the columns of a table, or texts that a record contains.

A row is meant only when the condition is true for it, as in SQL: where it is unknown, because a value is null, the row
stays. Values of a condition are personal data: whatever is recorded has its digest alone, and no message repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256
from operator import or_
from typing import Any, Protocol
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, extract_field_ids, visit
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, IcebergType, NestedField, PrimitiveType, StringType, UUIDType
from pyparsing import ParseException

from sluice.errors import UsageError

_FORM = "Write it as `name = 'Ann'`, `id in (1, 2)`, `mail like 'ann@%' or mail is null`; see docs/guides/erasures.md."


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


def arrow_type(kind: IcebergType) -> Any:
    """How the values of a column are compared. PyArrow compares no uuid, but its bytes."""
    return pa.binary(16) if isinstance(kind, UUIDType) else schema_to_pyarrow(kind)


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
        columns: Any = {"meant": visit(self.bound, _ToArrow())}
        found: Any = ds.Scanner.from_batches(
            iter(rows.to_batches()), schema=rows.schema, columns=columns, use_threads=False
        ).to_table()
        return pc.fill_null(found.column("meant").combine_chunks(), False)


def condition_of(text: str, schema: Schema, *, table: str) -> Condition:
    """Read a condition over the columns of a table.

    Raises
    ------
    UsageError: when it cannot be read, names what is no column of the table, compares a column with a value of another
        type, or is true or false for every row.
    """
    try:
        parsed = parse(text)
    except (ParseException, ValueError, RecursionError) as error:
        place = f" near its character {error.loc + 1}" if isinstance(error, ParseException) else ""
        raise UsageError(f"The condition cannot be read{place}.", next_step=_FORM) from None
    bound = _bound(parsed, schema, table=table)
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
    return Condition(digest=_digest(text), bound=bound, fields=fields)


def _bound(parsed: BooleanExpression, schema: Schema, *, table: str) -> BooleanExpression:
    try:
        return bind(schema, parsed, case_sensitive=True)
    except (ValueError, TypeError) as error:
        if "Could not find field" in str(error):
            columns = ", ".join(one.name for one in schema.fields)
            raise UsageError(
                f"The condition names what is no column of {table}.",
                next_step=f"Its columns are {columns}; capital letters count.",
            ) from None
        raise UsageError(
            f"The condition compares a column of {table} with a value that is not of its type.", next_step=_FORM
        ) from None


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
    UsageError: when one is so short that it is in records of others, too.
    """
    given = tuple(dict.fromkeys(texts))
    if any(len(one.strip()) < _SHORTEST for one in given):
        raise UsageError(
            f"A text of fewer than {_SHORTEST} characters is in records of others, too.",
            next_step="Give the whole value, such as a mail address.",
        )
    return Texts(texts=given)


_SHORTEST = 4


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


class _ToArrow(BoundBooleanExpressionVisitor[Any]):
    """A condition as PyArrow computes it. Compared with a null, all is null, so that `not in` leaves such rows out."""

    def visit_in(self, term: Any, literals: set[Any]) -> Any:
        """Whether the value is one of several."""
        return reduce(or_, [self._column(term) == self._value(term, one) for one in literals])

    def visit_not_in(self, term: Any, literals: set[Any]) -> Any:
        """Whether it is none of them."""
        return ~self.visit_in(term, literals)

    def visit_is_nan(self, term: Any) -> Any:
        """Whether it is no number."""
        return pc.is_nan(self._column(term))

    def visit_not_nan(self, term: Any) -> Any:
        """Whether it is a number."""
        return ~self.visit_is_nan(term)

    def visit_is_null(self, term: Any) -> Any:
        """Whether there is none."""
        return self._column(term).is_null()

    def visit_not_null(self, term: Any) -> Any:
        """Whether there is one."""
        return self._column(term).is_valid()

    def visit_equal(self, term: Any, literal: Any) -> Any:
        """Whether it is this one."""
        return self._column(term) == self._value(term, literal)

    def visit_not_equal(self, term: Any, literal: Any) -> Any:
        """Whether it is another one."""
        return self._column(term) != self._value(term, literal)

    def visit_greater_than_or_equal(self, term: Any, literal: Any) -> Any:
        """Whether it is this one, or above."""
        return self._column(term) >= self._value(term, literal)

    def visit_greater_than(self, term: Any, literal: Any) -> Any:
        """Whether it is above."""
        return self._column(term) > self._value(term, literal)

    def visit_less_than(self, term: Any, literal: Any) -> Any:
        """Whether it is below."""
        return self._column(term) < self._value(term, literal)

    def visit_less_than_or_equal(self, term: Any, literal: Any) -> Any:
        """Whether it is this one, or below."""
        return self._column(term) <= self._value(term, literal)

    def visit_starts_with(self, term: Any, literal: Any) -> Any:
        """Whether it begins so."""
        return pc.starts_with(self._column(term), literal.value)

    def visit_not_starts_with(self, term: Any, literal: Any) -> Any:
        """Whether it begins otherwise."""
        return ~self.visit_starts_with(term, literal)

    def visit_true(self) -> Any:
        """Every row."""
        return pc.scalar(True)

    def visit_false(self) -> Any:
        """No row."""
        return pc.scalar(False)

    def visit_not(self, child_result: Any) -> Any:
        """The others, but those of which it is unknown."""
        return ~child_result

    def visit_and(self, left_result: Any, right_result: Any) -> Any:
        """Both."""
        return left_result & right_result

    def visit_or(self, left_result: Any, right_result: Any) -> Any:
        """One of both."""
        return left_result | right_result

    @staticmethod
    def _column(term: Any) -> Any:
        return pc.field(term.ref().field.name)

    @staticmethod
    def _value(term: Any, literal: Any) -> Any:
        value = literal.value if isinstance(literal, Literal) else literal
        value = value.bytes if isinstance(value, UUID) else value
        return pa.scalar(value, arrow_type(term.ref().field.field_type))
