"""The fields of Iceberg tables as a plan reads them, and what of them has changed since.

Spark plans a query once and reads new files into the types of that plan: a column that became optional gives 0 for
null, one that was widened gives null for large values, and one that was dropped and added again gives null in every
row. So the fields that a plan was made with are compared with those of the table before each batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.types import ListType, MapType, NestedField, StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceField:
    """A field of a table. path: its name, with those of the fields around it. kind: its type; of one with fields in it
    only which kind it is."""

    path: str
    kind: str
    required: bool

    def __str__(self) -> str:
        return f"{'required' if self.required else 'optional'} {self.kind}"


SourceFields = Mapping[int, SourceField]
"""The fields of a table by their ids, those inside of others too."""


def fields_of(schema: Schema) -> SourceFields:
    """The fields of a table's schema."""
    return dict(_fields(schema.fields, ""))


def changed_fields(planned: SourceFields, now: SourceFields) -> tuple[str, ...]:
    """A phrase for each field of a plan that the table does not have any more as it was. A field that was added changes
    nothing for the plan."""
    return tuple(
        f"{before.path}: {before} is now {_as_it_is(before, now.get(number))}"
        for number, before in planned.items()
        if now.get(number) != before
    )


UNREADABLE: Mapping[str, str] = {"time": "is a time of day, which Spark does not have"}
"""Why a column of a table cannot be read, by its type. Another writer may add one to a table."""


def unreadable_fields(fields: SourceFields) -> tuple[str, ...]:
    """A phrase for each field that Spark cannot read."""
    return tuple(
        f"column {one.path} of type {one.kind} {UNREADABLE[one.kind]}"
        for one in fields.values()
        if one.kind in UNREADABLE
    )


PLANNED = "A run that starts now is planned with it, and stops if it does not fit."
PLANS_AGAIN = "The run plans again before its next batch."
WITHOUT_NEW = "What is new in it is read from the next start on."


def answer_to_fields(planned: SourceFields, now: SourceFields) -> str:
    """The sentence on what a run does about the fields that a table has now. planned: those that it reads."""
    if planned == now:
        return PLANNED  # they changed between two looks, and the plan was made in between
    return PLANS_AGAIN if changed_fields(planned, now) else WITHOUT_NEW


def described_fields(fields: SourceFields) -> dict[str, str]:
    """The type of each field in words, by its path, with the id, by which two columns of one name differ."""
    return {one.path: f"{one}, id {number}" for number, one in fields.items()}


def _as_it_is(before: SourceField, now: SourceField | None) -> str:
    if now is None:
        return "gone"
    return str(now) if now.path == before.path else f"{now.path}, {now}"


def _fields(fields: tuple[NestedField, ...], prefix: str) -> Iterator[tuple[int, SourceField]]:
    for field in fields:
        path, kind = f"{prefix}{field.name}", field.field_type
        has_fields = isinstance(kind, StructType | ListType | MapType)
        word = type(kind).__name__.removesuffix("Type").lower() if has_fields else str(kind)
        yield field.field_id, SourceField(path=path, kind=word, required=field.required)
        match kind:
            case StructType():
                yield from _fields(kind.fields, f"{path}.")
            case ListType():
                yield from _fields((kind.element_field,), f"{path}.")
            case MapType():
                yield from _fields((kind.key_field, kind.value_field), f"{path}.")
