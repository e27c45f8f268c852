"""How a frozen record is stored as a row: each field is a column, and the fields of a nested record are columns, too.

    key: PublicationKey        stream, generation, batch          the field `key` gives its columns no prefix
    process: ProcessIdentity   process_host, process_pid, …       every other one gives them its name
    log_file: Path             log_file, as text
    findings: tuple[…]         findings, as JSON

`sluice.ledger.ledger_table` makes the columns of a table from this, so that a fact is written in its record alone. Text
is stored as PostgreSQL can hold it, so that a failure is recorded whatever its message quotes.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from psycopg.abc import Buffer
from psycopg.types.string import StrDumper
from pydantic import TypeAdapter
from pydantic_core import to_json

from sluice.errors import LedgerError
from sluice.failure_reasons import Failure, FailureReason

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from sqlalchemy import Row

Record = TypeVar("Record", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForm:
    """How a value is stored as text. read: none when the text means nothing to this program."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]


_REASONS = frozenset(FailureReason)

TEXT_FORMS: Mapping[type, TextForm] = {
    Path: TextForm(write=str, read=Path),
    Failure: TextForm(
        write=lambda failure: str(failure.reason),
        # A newer program may know reasons that this one does not.
        read=lambda reason: Failure.of(FailureReason(reason)) if reason in _REASONS else None,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredField:
    """A column of a record.

    field, part: the field that it holds, and the field of the nested record in it; part is empty without one.
    kind: the type of its values. is_nullable: whether the record may have none. default: of the field, or MISSING.
    """

    column: str
    field: str
    part: str
    kind: Any
    is_nullable: bool
    default: Any

    def value_of(self, record: DataclassInstance) -> Any:
        """The value of the column."""
        value = getattr(record, self.field)
        if self.part and value is not None:
            value = getattr(value, self.part)
        form = TEXT_FORMS.get(self.kind)
        return value if form is None or value is None else form.write(value)


@cache
def stored_fields(record: type[DataclassInstance]) -> tuple[StoredField, ...]:
    """The columns of a record, in the order of its fields."""
    return tuple(stored for field in fields(record) for stored in _stored(field, get_type_hints(record)[field.name]))


def values_of(record: DataclassInstance, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The values of a record's row. `recorded_at` is left to the database's clock.

    Parameters
    ----------
    without: columns that the table does not have.
    """
    left_out = {"recorded_at", *without}
    return {one.column: one.value_of(record) for one in stored_fields(type(record)) if one.column not in left_out}


def record_of(kind: type[Record], row: Row[*tuple[Any, ...]] | Mapping[str, Any]) -> Record:
    """The record that a row holds. A column that the row does not have, or that is null, gives the field's default.

    Parameters
    ----------
    row: of a query for the columns of the record, or some of them, and maybe others; or their values by name.

    Raises
    ------
    LedgerError: when a column holds a word that this program does not know, as a newer one may write.
    """
    columns, values = (tuple(row), tuple(row.values())) if isinstance(row, Mapping) else (row._fields, tuple(row))
    found: dict[str, Any] = {}
    for one in _cells(kind, columns):
        value = values[one.place]
        if value is not None and one.read is not None:
            value = one.read(value)
        if value is None:
            if not one.has_default:
                found[one.field] = None
        elif one.words is not None and value not in one.words:
            raise _unknown_word(one, value, dict(zip(columns, values, strict=True)))
        elif one.part:
            found.setdefault(one.field, {})[one.part] = value
        else:
            found[one.field] = value
    record: Record = _adapter(kind).validate_python(found)
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """Where a row has a column of a record, and how it is read. A page reads thousands of rows of the same columns.

    place: in the row. words: the only ones that it may have; unset: any value. has_default: what is null is left out.
    """

    place: int
    column: str
    field: str
    part: str
    read: Callable[[str], Any] | None
    words: frozenset[str] | None
    has_default: bool


@cache
def _cells(kind: type[DataclassInstance], columns: tuple[str, ...]) -> tuple[_Cell, ...]:
    """The columns of a record that rows with these columns have."""
    places = {column: place for place, column in enumerate(columns)}
    return tuple(_cell(one, places[one.column]) for one in stored_fields(kind) if one.column in places)


def _cell(one: StoredField, place: int) -> _Cell:
    form = TEXT_FORMS.get(one.kind)
    return _Cell(
        place=place,
        column=one.column,
        field=one.field,
        part=one.part,
        read=None if form is None else form.read,
        words=frozenset(one.kind) if isinstance(one.kind, type) and issubclass(one.kind, StrEnum) else None,
        has_default=bool(one.part) or one.default is not MISSING,
    )


def _unknown_word(one: _Cell, value: Any, values: Mapping[str, Any]) -> LedgerError:
    of = next((f" of {name} {values[name]}" for name in ("stream", "table", "item") if values.get(name)), "")
    known = ", ".join(sorted(one.words or ()))
    return LedgerError(
        f"The ledger has the word {value!r} as {one.column}{of}, which this program does not know; it knows {known}.",
        next_step="A newer Sluice has written it: use that one everywhere, or a later one.",
    )


@cache
def _adapter(kind: type[Record]) -> TypeAdapter[Record]:
    return TypeAdapter(kind)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The type of a hint `X | None`, and whether it had the `None`."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    (kind,) = [one for one in get_args(hint) if one is not types.NoneType]
    return kind, True


def _stored(field: Field[Any], hint: Any) -> Iterator[StoredField]:
    kind, is_nullable = _without_none(hint)
    if not isinstance(kind, type) or not is_dataclass(kind) or kind in TEXT_FORMS:
        yield StoredField(
            column=field.name, field=field.name, part="", kind=kind, is_nullable=is_nullable, default=_default(field)
        )
        return
    prefix = "" if field.name == "key" else f"{field.name}_"
    for part in stored_fields(kind):
        yield StoredField(
            column=f"{prefix}{part.column}",
            field=field.name,
            part=part.column,
            kind=part.kind,
            is_nullable=is_nullable or part.is_nullable,
            default=MISSING if is_nullable else part.default,
        )


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def storable_text(given: str) -> str:
    """A text with `\\x00` for each NUL and `\\udXXX` for each lone surrogate, which PostgreSQL refuses.

    Messages quote what a record, a key or a file name holds, and that may be anything.
    https://www.postgresql.org/docs/current/datatype-character.html
    """
    return given.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def storable_json(value: Any) -> str:
    """JSON that PostgreSQL accepts: text as `storable_text` writes it, other values as text, NaN as null."""
    return to_json(_storable(value), inf_nan_mode="null", fallback=str).decode()


def _storable(value: Any) -> Any:
    match value:
        case str():
            return storable_text(value)
        case Mapping():
            return {_storable(name): _storable(one) for name, one in value.items()}
        case list() | tuple():
            return [_storable(one) for one in value]
    return value


class StorableTextDumper(StrDumper):
    """Sends every string of Python as `storable_text` writes it, whatever statement it is a parameter of."""

    def dump(self, obj: str) -> Buffer | None:
        """The bytes of a parameter."""
        return super().dump(storable_text(obj))
