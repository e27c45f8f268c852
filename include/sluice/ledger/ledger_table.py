"""What the tables of the ledger share: their schema, the names of their constraints, and columns made from a record.

They live in a PostgreSQL schema of their own, so that the ledger may share a database with others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Double,
    Interval,
    MetaData,
    Select,
    Text,
    TextClause,
    func,
    literal,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, MappedColumn, mapped_column

from sluice.ledger.stored_values import TEXT_FORMS, StoredField, stored_fields

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from sqlalchemy.orm import InstrumentedAttribute
    from sqlalchemy.orm.decl_api import DeclarativeAttributeIntercept
    from sqlalchemy.sql.elements import KeyedColumnElement

    class _ColumnsByName(DeclarativeAttributeIntercept):
        """For the type checker: a table has the columns of its record as attributes."""

        def __getattr__(self, name: str) -> InstrumentedAttribute[Any]: ...

    class _Base(DeclarativeBase, metaclass=_ColumnsByName): ...

else:
    _Base = DeclarativeBase

SCHEMA = "sluice"
"""The PostgreSQL schema that holds every table of the ledger."""

_TYPES: Mapping[Any, Any] = {
    str: Text,
    int: BigInteger,
    float: Double,
    bool: Boolean,
    datetime: DateTime(timezone=True),
    timedelta: Interval,
}
"""The type of a column by that of its values; what is not listed is an enum, a form of text, or else JSON."""


class LedgerTable(_Base):
    """A table of the ledger. Its columns are those of a frozen record, and what the class adds to them:

        class Lease(LedgerTable, record=LeaseObservation, key=("stream",), now=("renewed_at",)):
            __tablename__ = "leases"

    A field's default is that of its column as well, and an enum may only have the words of its class.

    Parameters
    ----------
    record: the record; unset for a table whose columns the class declares itself.
    key: the columns of the primary key. now: those that are filled from the database's clock; `recorded_at` is.
    without: fields that are not stored.
    """

    metadata = MetaData(
        schema=SCHEMA,
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "pk": "pk_%(table_name)s",
        },
    )
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy reads a plain dict here
        **_TYPES,
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
    }

    def __init_subclass__(
        cls,
        *,
        record: type[DataclassInstance] | None = None,
        key: tuple[str, ...] = (),
        now: tuple[str, ...] = (),
        without: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        stored = [] if record is None else [one for one in stored_fields(record) if one.column not in without]
        for one in stored:
            if one.column not in cls.__annotations__:
                setattr(cls, one.column, _column(one, is_key=one.column in key, is_now=one.column in now))
        checks = [_words(one) for one in stored if _is_enum(one.kind)]
        cls.__table_args__ = (*getattr(cls, "__table_args__", ()), *checks)
        super().__init_subclass__(**options)

    @classmethod
    def columns(cls, *, without: Iterable[str] = ()) -> tuple[KeyedColumnElement[Any], ...]:
        """The columns of the table, for a query that a record is made from."""
        left_out = set(without)
        return tuple(column for column in cls.__table__.columns if column.name not in left_out)


def newest_by_table(
    of: type[LedgerTable], names: Sequence[str], *, without: Iterable[str], limit: int = 1
) -> Select[Any]:
    """The newest rows about each of some tables, newest first, by an index on `table` and `number`.

    Parameters
    ----------
    of: what has the rows. names: the tables that they are about. without: columns that are left out.
    """
    asked = func.unnest(literal(list(names), ARRAY(Text))).table_valued("name").render_derived(name="asked")
    newest = (
        select(*of.columns(without=without))
        .where(of.table == asked.c.name)
        .order_by(of.number.desc())
        .limit(limit)
        .lateral("newest")
    )
    return select(*newest.c).select_from(asked.join(newest, true()))


def is_one_of(column: str, words: Iterable[str]) -> str:
    """SQL that is true when the column holds one of these words."""
    allowed = ", ".join(f"'{word}'" for word in sorted(words))
    return f"{column} IN ({allowed})"


def _column(one: StoredField, *, is_key: bool, is_now: bool) -> MappedColumn[Any]:
    is_recorded_at = one.column == "recorded_at"
    default = func.now() if is_now or is_recorded_at else _server_default(one)
    nullable = one.is_nullable and not is_recorded_at and not is_key
    # A number of a key is never drawn from a sequence; the words for other columns are SQLAlchemy's default.
    autoincrement: Literal["auto", False] = False if is_key else "auto"
    return mapped_column(
        _type_of(one.kind), primary_key=is_key, autoincrement=autoincrement, nullable=nullable, server_default=default
    )


def _server_default(one: StoredField) -> TextClause | None:
    if one.default is MISSING:
        return None
    match one.default:
        case None:
            return None
        case str():
            return text(f"'{one.default}'")
        case bool() | int():
            return text(json.dumps(one.default))
        case _:
            return text(f"'{json.dumps(one.default)}'::jsonb")


def _words(one: StoredField) -> CheckConstraint:
    return CheckConstraint(is_one_of(one.column, one.kind), name=one.column)


def _type_of(kind: Any) -> Any:
    if _is_enum(kind) or kind in TEXT_FORMS:
        return Text
    return _TYPES.get(kind, JSONB)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)
