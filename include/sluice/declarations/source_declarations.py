"""The kinds of sources: where the rows of an input come from, one model for each kind.

A declaration names a connection of the deployment (`sluice.settings`). It holds no hosts, folders or secrets.
"""

from __future__ import annotations

import itertools
import re
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AliasChoices, Field, StringConstraints, model_validator

from sluice.declarations.scalar_types import (
    LARGEST_INT,
    LARGEST_LONG,
    ColumnName,
    Declared,
    Flag,
    Name,
    RelativePath,
    SchemaFile,
    TableName,
    Time,
    WholeNumber,
    one_of,
    wrong,
)
from sluice.declarations.value_declaration import RECORD_COLUMN as RECORD_COLUMN
from sluice.declarations.value_declaration import (
    UNKNOWN_FIELD_HELP,
    UnknownFieldPolicy,
    ValueColumn,
    ValueDeclaration,
    repeated_column,
    repetition,
    require_fields,
    unreadable_csv_type,
    unreadable_json_type,
)
from sluice.declarations.value_declaration import Column as Column

_LONGEST_PATTERN = 1000


def _checked_regex(text: str) -> str:
    if len(text) > _LONGEST_PATTERN:
        raise ValueError(f"a regular expression has at most {_LONGEST_PATTERN} characters")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"this is not a regular expression: {error}") from error
    return text


def _checked_topic(text: str) -> str:
    if text in (".", ".."):
        raise ValueError("Kafka has no topic of this name")
    return text


TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$"), AfterValidator(_checked_topic)]
Partition = Annotated[WholeNumber, Field(ge=0, le=1_000_000)]
Offset = Annotated[WholeNumber, Field(ge=-2, le=LARGEST_LONG)]
"""An offset of a partition; -2 is its earliest, -1 its latest."""


MOST_TOPICS = 1000

RECORD_TIME = "timestamp"
"""The column of a Kafka record with its own time: when it was sent, or when the broker got it."""


class KafkaSource(Declared):
    """Records of Kafka topics, as key, value, topic, partition, offset, timestamp (and headers when asked)."""

    connection: Name = Field(description="a Kafka connection of the deployment")
    topics: tuple[TopicName, ...] | None = Field(
        None, min_length=1, max_length=MOST_TOPICS, description="the topics by name"
    )
    topic_pattern: Annotated[str, AfterValidator(_checked_regex)] | None = Field(
        None, description="the topics whose whole name matches a regular expression, also those that come later"
    )
    assignment: dict[TopicName, tuple[Partition, ...]] | None = Field(
        None, min_length=1, description="partitions by topic"
    )
    starting: Literal["earliest", "latest"] | Time | dict[TopicName, dict[Partition, Offset]] = Field(
        "earliest", description="where a new checkpoint begins: an end, a time, or an offset for each partition"
    )
    headers: Flag = Field(False, description="whether records carry their headers")
    value: ValueDeclaration | None = Field(None, description="what the values hold; unset: bytes, as they come")
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed", description="whether records of open and aborted transactions are left out"
    )
    max_offsets_per_batch: WholeNumber | None = Field(
        None, gt=0, le=LARGEST_LONG, description="the most offsets in a batch, over all partitions"
    )
    min_offsets_per_batch: WholeNumber | None = Field(
        None, gt=0, le=LARGEST_LONG, description="a batch waits until so many offsets are there"
    )
    on_data_loss: Literal["fail", "count"] = Field(
        "fail", description="when offsets are gone before they were read: stop, or count the gap and continue"
    )

    @model_validator(mode="after")
    def _one_subscription(self) -> Self:
        one_of(self, "topics", "topic_pattern", "assignment")
        for index, topic in enumerate(self.topics or ()):
            if topic in (self.topics or ())[:index]:
                raise wrong(f"the topic {topic} is named twice", "topics", index)
        for topic, partitions in (self.assignment or {}).items():
            if not partitions or len(set(partitions)) != len(partitions):
                raise wrong("names each partition of the topic once, and at least one", "assignment", topic)
        self._starting_fits()
        least, most = self.min_offsets_per_batch, self.max_offsets_per_batch
        if least is not None and most is not None and least > most:
            raise wrong(f"is at most max_offsets_per_batch, {most}", "min_offsets_per_batch")
        return self

    def _starting_fits(self) -> None:
        """Spark wants an offset for every partition that it reads, and for no other."""
        if not isinstance(self.starting, dict):
            return
        named = self.assignment or dict.fromkeys(self.topics or self.starting)
        if unknown := sorted(set(self.starting) - set(named)):
            raise wrong(f"the topic {unknown[0]} is not read here", "starting", unknown[0])
        if missing := sorted(set(named) - set(self.starting)):
            raise wrong(f"names an offset for every topic, and {missing[0]} is missing", "starting")
        for topic, partitions in (self.assignment or {}).items():
            if set(self.starting[topic]) != set(partitions):
                raise wrong(f"names the offsets of the assigned partitions, {partitions}", "starting", topic)


class KinesisSource(Declared):
    """Records of a Kinesis stream."""

    connection: Name = Field(description="a Kinesis connection of the deployment")
    stream: str = Field(description="the Kinesis stream's name", pattern=r"^[A-Za-z0-9._-]{1,128}$")
    starting: Literal["trim_horizon", "latest"] | Time = Field(
        "trim_horizon", description="where a new checkpoint begins"
    )
    value: ValueDeclaration | None = Field(None, description="what the data hold; unset: bytes, as they come")
    max_records_per_batch: WholeNumber | None = Field(
        None, gt=0, le=LARGEST_LONG, description="the most records in a batch of a continuous stream"
    )

    @model_validator(mode="after")
    def _every_record_has_a_value(self) -> Self:
        if self.value is not None and "tombstones" in self.value.model_fields_set:
            raise wrong("belongs to Kafka: each record of Kinesis has a value. Leave it out", "value", "tombstones")
        return self


class FilesSource(Declared):
    """Files below a folder of a connection, each read once."""

    connection: Name = Field(description="a files connection of the deployment")
    path: RelativePath = Field("", description="a path below the connection's folder; `*` matches within a name")
    format: Literal["json", "csv", "parquet", "orc", "avro", "text"] = Field(description="the format of every file")
    columns: tuple[ValueColumn, ...] = Field((), description="the columns to read; every format but text needs them")
    schema_file: SchemaFile | None = Field(
        None,
        description="instead of columns: a file beside the declaration with an Avro schema, a JSON Schema or an "
        "Iceberg schema",
    )
    header: Flag = Field(True, description="whether the first line of a csv file names the columns")
    max_files_per_batch: WholeNumber | None = Field(
        None, gt=0, le=LARGEST_INT, description="as a stream: the most files in a batch"
    )
    on_malformed: Literal["fail", "quarantine"] = Field(
        "fail",
        description="as a stream of json or csv: when a line does not fit the columns, or lacks a required value, stop "
        "or put it into the stream's quarantine",
    )
    on_unknown_field: UnknownFieldPolicy = Field("ignore", description=f"json and csv: {UNKNOWN_FIELD_HELP}")
    on_changed: Literal["fail", "ignore"] = Field(
        "fail",
        description="as a stream: when a file was written again after it was read, stop at the next start, or leave "
        "its new content out",
    )
    latest_first: Flag = Field(False, description="as a stream: whether the newest files are read first")
    afterwards: Literal["keep", "archive", "delete"] = Field(
        "keep", description="as a stream: what becomes of a file that was read, once the next batch begins"
    )
    archive_path: RelativePath | None = Field(
        None, description="where archived files go: a path below the connection's folder and outside `path`"
    )

    @model_validator(mode="after")
    def _schema_is_declared(self) -> Self:
        if self.format != "text" and not self.columns and self.schema_file is None:
            raise ValueError(
                f"columns, or a schema_file, are needed for {self.format}: a stream never guesses its schema"
            )
        if "columns" in self.model_fields_set and self.schema_file is not None:
            raise wrong("the columns are declared already: either they or a file", "schema_file")
        if (again := repeated_column(self.columns)) is not None:
            raise wrong(repetition(self.columns, again), "columns", again, "name")
        has_fields = self.format == "json" or (self.format == "csv" and self.header)
        other = f"belongs to json and to csv with a header; {self.format} is read by the names of its columns"
        require_fields(self.columns, refusal=None if has_fields else other)
        for index, column in enumerate(self.columns):
            if column.unit is not None and self.format not in ("json", "csv"):
                raise wrong(f"belongs to json and csv, not to {self.format}", "columns", index, "unit")
            unreadable = {"json": unreadable_json_type, "csv": unreadable_csv_type}.get(self.format)
            if unreadable is not None and (why := unreadable(column.column_type)) is not None:
                raise wrong(why, "columns", index, "type")
        if self.schema_file is not None and self.schema_file.endswith(".proto"):
            raise wrong("a Protobuf schema describes values of records, no files", "schema_file")
        return self

    @model_validator(mode="after")
    def _lines_can_be_put_aside(self) -> Self:
        if self.on_malformed == "quarantine" and self.format not in ("json", "csv"):
            raise wrong(f"only lines of json and csv can be put aside, not {self.format}", "on_malformed")
        return self

    @model_validator(mode="after")
    def _fields_can_be_unknown(self) -> Self:
        if "on_unknown_field" in self.model_fields_set and (self.format not in ("json", "csv") or not self.header):
            other = self.format if self.header else "files without a header"
            raise wrong(f"belongs to json, and to csv with a header, not to {other}", "on_unknown_field")
        if self.on_unknown_field == "quarantine" and self.on_malformed != "quarantine":
            raise wrong("needs `on_malformed: quarantine`", "on_unknown_field")
        return self

    @model_validator(mode="after")
    def _archive_lies_outside(self) -> Self:
        if (self.afterwards == "archive") != bool(self.archive_path):
            raise wrong("belongs to `afterwards: archive`, which needs it", "archive_path")
        own = PurePosixPath(*itertools.takewhile(lambda part: "*" not in part, PurePosixPath(self.path).parts))
        archive = PurePosixPath(self.archive_path or "")
        if self.archive_path and (archive.is_relative_to(own) or own.is_relative_to(archive)):
            raise wrong(f"lies outside `path`, {self.path or 'which is the whole folder'}", "archive_path")
        return self


class SnapshotStart(Declared):
    """A snapshot of a table's history: a new checkpoint begins with what was appended after it."""

    snapshot_id: WholeNumber | None = Field(None, ge=0, le=LARGEST_LONG, description="the snapshot by its id")
    tag: Name | None = Field(None, description="the snapshot that has this tag when the checkpoint begins")

    @model_validator(mode="after")
    def _one_snapshot(self) -> Self:
        one_of(self, "snapshot_id", "tag")
        return self


TableBeginning = Literal["table", "latest"] | Time | SnapshotStart
"""Where a new checkpoint begins in an Iceberg table."""


class IcebergSource(Declared):
    """An Iceberg table: its appended rows as a stream, or its rows at one snapshot as a static input."""

    table: TableName = Field(description="the table")
    on_overwrite: Literal["fail", "skip"] = Field(
        "fail", description="as a stream: when a snapshot rewrote rows, stop or leave the whole snapshot out"
    )
    on_delete: Literal["fail", "skip"] = Field(
        "fail", description="as a stream: when a snapshot deleted rows, stop or leave it out"
    )
    starting: TableBeginning = Field(
        "table",
        validation_alias=AliasChoices("starting", "from_timestamp"),
        description="as a stream: where a new checkpoint begins: with every row of the table, with what comes after "
        "the start, or with what was appended since a time or after a snapshot",
    )
    max_rows_per_batch: WholeNumber | None = Field(
        None, gt=0, le=LARGEST_LONG, description="as a stream: the most rows in a batch, in whole files"
    )
    max_files_per_batch: WholeNumber | None = Field(
        None, gt=0, le=LARGEST_INT, description="as a stream: the most files in a batch"
    )
    value: ValueDeclaration | None = Field(
        None, description="as a stream: what the column `value_column` holds, decoded as the values of Kafka are"
    )
    value_column: ColumnName = Field(
        "value", description="as a stream: the column of bytes, or of text for json, that `value` decodes"
    )
    snapshot_id: WholeNumber | None = Field(
        None, ge=0, le=LARGEST_LONG, description="static: the table at this snapshot"
    )
    tag: Name | None = Field(None, description="static: the table at the snapshot that has this tag")
    as_of: Time | None = Field(None, description="static: the table as it was at this time")

    @property
    def is_fixed(self) -> bool:
        """Whether a static input reads the same snapshot always."""
        return any(value is not None for value in (self.snapshot_id, self.tag, self.as_of))

    @model_validator(mode="after")
    def _column_has_a_value(self) -> Self:
        if "value_column" in self.model_fields_set and self.value is None:
            raise wrong("is the column that `value` decodes: add it", "value_column")
        return self

    @model_validator(mode="after")
    def _one_snapshot(self) -> Self:
        if len(given := [key for key in ("snapshot_id", "tag", "as_of") if getattr(self, key) is not None]) > 1:
            raise ValueError(
                f"at most one of snapshot_id, tag, as_of says which snapshot is read, got {', '.join(given)}"
            )
        return self


class DeltaSource(Declared):
    """A Delta table, by its path below a connection's folder."""

    connection: Name = Field(description="a files connection of the deployment")
    path: RelativePath = Field(min_length=1, description="the table's folder below the connection's")
    from_timestamp: Time | None = Field(
        None, description="as a stream: a new checkpoint begins with what was committed at this time or later"
    )
    max_files_per_batch: WholeNumber | None = Field(
        None, gt=0, le=LARGEST_INT, description="as a stream: the most files in a batch"
    )
    version: WholeNumber | None = Field(None, ge=0, le=LARGEST_LONG, description="static: the table at this version")
    as_of: Time | None = Field(None, description="static: the table as it was at this time")

    @model_validator(mode="after")
    def _one_version(self) -> Self:
        if self.version is not None and self.as_of is not None:
            raise ValueError("at most one of version, as_of says which version is read, got both")
        return self


class JdbcSource(Declared):
    """A table of a database, as a static input."""

    connection: Name = Field(description="a database connection of the deployment")
    table: str = Field(description="the table's name in the database", pattern=r"^[A-Za-z0-9_.]{1,256}$")


class SocketSource(Declared):
    """Lines from a socket, for trying out."""

    host: str = Field(pattern=r"^[A-Za-z0-9._:-]{1,253}$", description="the host to connect to")
    port: WholeNumber = Field(gt=0, lt=65536, description="the port to connect to")


class RateSource(Declared):
    """Numbered rows at a steady rate, for trying out."""

    rows_per_second: WholeNumber = Field(1, gt=0, le=LARGEST_INT, description="rows in a second")


AnySource = (
    KafkaSource | KinesisSource | FilesSource | IcebergSource | DeltaSource | JdbcSource | SocketSource | RateSource
)
