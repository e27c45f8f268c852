"""The declaration of record values: their format, and the columns that they become."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from sluice.declarations.column_types import ColumnType, ListType, MapType, StructType, kind_of, parse_column_type
from sluice.declarations.scalar_types import (
    LARGEST_INT,
    ColumnName,
    Declared,
    Description,
    Duration,
    Flag,
    Name,
    SchemaFile,
    WholeNumber,
    wrong,
)

RECORD_COLUMN = "record"
"""The column that holds the record itself, beside the columns of its value."""


def _checked_type(text: str) -> str:
    parse_column_type(text)
    return text


SubjectName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,255}$")]
MessageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")]


class Column(Declared):
    """A column: its name, its Iceberg type, and its documentation."""

    name: ColumnName = Field(description="the column's name")
    type: Annotated[str, AfterValidator(_checked_type)] = Field(
        description="an Iceberg type, for example `long`, `timestamptz`, `decimal(9, 2)`, `list<string>`"
    )
    required: Flag = Field(False, description="whether every row has a value")
    doc: Description = Field("", description="the documentation of the column")

    @property
    def column_type(self) -> ColumnType:
        """The type, parsed."""
        return parse_column_type(self.type)


def _checked_field(text: str) -> str:
    if not text.isprintable():
        raise ValueError("the name of a field is printable text")
    return text


FieldName = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_checked_field)]


class ValueColumn(Column):
    """A field of a value that becomes a column."""

    field: FieldName | None = Field(
        None,
        description="of json, csv and avro: the name of the field where it is sent, which may be any text, for example "
        "`@timestamp`; unset: that of the column",
    )
    unit: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"] | None = Field(
        None, description="of a JSON value's number that counts from 1970, for a column of times"
    )

    @model_validator(mode="after")
    def _unit_is_of_a_time(self) -> Self:
        if self.unit is not None and self.type not in ("timestamp", "timestamptz"):
            raise wrong(f"belongs to `timestamp` and `timestamptz`, not to {self.type}", "unit")
        return self


UnknownFieldPolicy = Literal["ignore", "quarantine", "fail"]
"""What becomes of a value that has a field without a column."""

UNKNOWN_FIELD_HELP = (
    "when a value has a field that no column takes: leave the field out and count it, put the record into the "
    "quarantine, or stop the stream"
)


def as_sent(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The same columns under the names of the fields that they are read from."""
    return tuple(
        column.model_copy(update={"name": column.field})
        if isinstance(column, ValueColumn) and column.field is not None
        else column
        for column in columns
    )


def require_fields(columns: Sequence[ValueColumn], *, refusal: str | None) -> None:
    """Check the names of fields, each of which becomes one column.

    Parameters
    ----------
    refusal: why no column may name a field; none where it may.

    Raises
    ------
    ValueError: at the column.
    """
    sent = [column.name for column in as_sent(columns)]
    for index, column in enumerate(columns):
        if column.field is None:
            continue
        if refusal is not None:
            raise wrong(refusal, "columns", index, "field")
        if sent.count(column.field) > 1:
            raise wrong(f"the field {column.field} is another column already", "columns", index, "field")


def repeated_column(columns: Sequence[Column]) -> int | None:
    """The place of the first column whose name another one before it has, also in other case; none when all differ."""
    names = [column.name.lower() for column in columns]
    return next((index for index, name in enumerate(names) if name in names[:index]), None)


def repetition(columns: Sequence[Column], index: int) -> str:
    """Why a column whose name is there already is refused."""
    name = columns[index].name
    first = next(column.name for column in columns if column.name.lower() == name.lower())
    other = "" if first == name else f" as {first}: Spark does not distinguish upper from lower case"
    return f"the column {name} is there already{other}"


_JSON_KEYS = ("string", "uuid", "int", "long", "date")
_NO_FIELDS = ("fixed", "list", "map", "struct")


def unreadable_json_type(column_type: ColumnType) -> str | None:
    """Why no JSON value can have a type; None when it can."""
    match column_type:
        case ListType(element):
            return unreadable_json_type(element)
        case MapType(key=key) if kind_of(key) not in _JSON_KEYS:
            return f"the keys of a JSON object can be {', '.join(_JSON_KEYS)}, not {kind_of(key)}"
        case MapType(value=value):
            return unreadable_json_type(value)
        case StructType(fields):
            return next((why for _, inner in fields if (why := unreadable_json_type(inner)) is not None), None)
    return None


def unreadable_csv_type(column_type: ColumnType) -> str | None:
    """Why no field of csv can have a type; None when it can."""
    kind = kind_of(column_type)
    return f"a field of csv is text, and none of {', '.join(_NO_FIELDS)}" if kind in _NO_FIELDS else None


_FIELDS_ONCE = (
    "exactly one of columns, schema_file and subject is needed: it names the fields. To take some of them, name them "
    "in `columns`: of json as it is, of avro with a `registry`, which has the schemas. Protobuf, and avro without a "
    "registry, need the whole schema: leave `columns` out, and select in the transformation"
)


class ValueDeclaration(Declared):
    """What the values of records hold. Their fields become columns, and the record itself lies in `record`.

    A value that cannot be decoded, or lacks a required field, goes to the stream's quarantine with its position.
    """

    format: Literal["json", "avro", "protobuf"] = Field(
        description="the form of the values: a JSON object, an Avro record, or a Protobuf message each"
    )
    columns: tuple[ValueColumn, ...] = Field((), description="the fields to take")
    schema_file: SchemaFile | None = Field(
        None,
        description="instead of columns: a file beside the declaration with an Avro schema, a JSON Schema, an "
        "Iceberg schema or a Protobuf one",
    )
    subject: SubjectName | None = Field(
        None, description="instead of columns: the subject of the registry that has the schema, read when a run begins"
    )
    version: WholeNumber | None = Field(
        None, gt=0, le=LARGEST_INT, description="of the subject's schema; unset: the newest"
    )
    registry: Name | None = Field(
        None,
        description="a schema registry's connection; each value then begins with the id of the schema it was written "
        "with",
    )
    message: MessageName | None = Field(
        None, description="protobuf: the message by its full name; unset: the first of the schema"
    )
    on_unknown_field: UnknownFieldPolicy = Field("ignore", description=UNKNOWN_FIELD_HELP)
    tombstones: Literal["quarantine", "ignore"] = Field(
        "quarantine",
        description="of Kafka, and of a table with its records: whether a record without a value, as a compacted topic "
        "has for a deleted key, goes to the quarantine, or is left out and counted as skipped input",
    )
    decoding_timeout: Duration = Field(
        timedelta(seconds=30), description="the longest that the decoding of a value, or of 16 MiB of them, may take"
    )
    decoding_tries: WholeNumber = Field(
        3,
        ge=1,
        le=10,
        description="how often a value that ends its decoder, or exceeds `decoding_timeout`, is tried alone before it "
        "goes to the quarantine",
    )

    @property
    def has_columns(self) -> bool:
        """Whether the declaration lists the columns instead of naming a schema."""
        return "columns" in self.model_fields_set

    @model_validator(mode="after")
    def _columns_are_declared_once(self) -> Self:
        if [self.has_columns, self.schema_file is not None, self.subject is not None].count(True) != 1:
            raise ValueError(_FIELDS_ONCE)
        if (again := repeated_column(self.columns)) is not None:
            raise wrong(repetition(self.columns, again), "columns", again, "name")
        require_fields(self.columns, refusal=None)
        for index, column in enumerate(self.columns):
            if column.unit is not None and self.format != "json":
                raise wrong(f"belongs to json: {self.format} says what its numbers count", "columns", index, "unit")
            if self.format == "json" and (why := unreadable_json_type(column.column_type)) is not None:
                raise wrong(why, "columns", index, "type")
            if column.name == RECORD_COLUMN:
                raise wrong(
                    f"`{RECORD_COLUMN}` is the name of the column that holds the record itself",
                    "columns",
                    index,
                    "name",
                )
        return self

    @model_validator(mode="after")
    def _schema_is_known(self) -> Self:
        if self.subject is not None and self.registry is None:
            raise wrong("is in a schema registry: add `registry`, a connection of the deployment", "subject")
        if self.version is not None and self.subject is None:
            raise wrong("belongs to a subject", "version")
        if self.message is not None and self.format != "protobuf":
            raise wrong(f"belongs to protobuf, not to {self.format}", "message")
        is_proto = self.schema_file is not None and self.schema_file.endswith(".proto")
        if self.schema_file is not None and is_proto != (self.format == "protobuf"):
            raise wrong("a `.proto` file and the format protobuf go together", "schema_file")
        if self.has_columns and self.format == "protobuf":
            raise wrong("protobuf needs the numbers of fields: use a schema_file or a subject instead", "columns")
        if self.has_columns and self.format == "avro" and self.registry is None:
            raise wrong(
                "avro needs the schema that the values were written with: add a schema_file or a registry",
                "columns",
            )
        return self
