"""Where rows come from: one model for each kind of source.

Hosts, folders and secrets are not written here: a declaration names a connection of the deployment (`sluice.settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Self

from pydantic import Field, model_validator

from sluice.declarations.scalar_types import (
    ColumnName,
    Declared,
    Duration,
    OneOfKinds,
    one_of,
    wrong,
)
from sluice.declarations.source_declarations import (
    AnySource,
    DeltaSource,
    FilesSource,
    IcebergSource,
    JdbcSource,
    KafkaSource,
    KinesisSource,
    RateSource,
    SocketSource,
)
from sluice.declarations.value_declaration import ValueDeclaration

NEVER_STATIC = ("kafka", "kinesis", "socket", "rate")
NEVER_STREAM = ("jdbc",)
STREAM_ONLY: Mapping[str, tuple[str, ...]] = {
    "iceberg": (
        "on_overwrite",
        "on_delete",
        "starting",
        "max_rows_per_batch",
        "max_files_per_batch",
        "value",
        "value_column",
    ),
    "files": (
        "max_files_per_batch",
        "latest_first",
        "on_malformed",
        "on_unknown_field",
        "on_changed",
        "afterwards",
        "archive_path",
    ),
    "delta": ("from_timestamp", "max_files_per_batch"),
}
"""The keys of a source that say how rows arrive, by the source's kind."""

STATIC_ONLY: Mapping[str, tuple[str, ...]] = {
    "iceberg": ("snapshot_id", "tag", "as_of"),
    "delta": ("version", "as_of"),
}
"""The keys of a source that say which state of a table is looked up, by the source's kind."""


def meaningless_sources() -> frozenset[str]:
    """The keys of a source that have no meaning as a stream, or as a static input, and are refused there for good."""
    return frozenset(
        (
            *(f"inputs.*.static.{kind}" for kind in NEVER_STATIC),
            *(f"inputs.*.stream.{kind}" for kind in NEVER_STREAM),
            *(f"inputs.*.static.{kind}.{key}" for kind, keys in STREAM_ONLY.items() for key in keys),
            *(f"inputs.*.stream.{kind}.{key}" for kind, keys in STATIC_ONLY.items() for key in keys),
        )
    )


class SourceDeclaration(OneOfKinds):
    """One source, under the key that says its kind."""

    kafka: KafkaSource | None = Field(None, description="records of Kafka topics")
    kinesis: KinesisSource | None = Field(None, description="records of a Kinesis stream")
    files: FilesSource | None = Field(None, description="files of a folder")
    iceberg: IcebergSource | None = Field(None, description="an Iceberg table")
    delta: DeltaSource | None = Field(None, description="a Delta table")
    jdbc: JdbcSource | None = Field(None, description="a table of a database")
    socket: SocketSource | None = Field(None, description="lines from a socket")
    rate: RateSource | None = Field(None, description="numbered rows at a steady rate")

    @property
    def source(self) -> AnySource:
        """The source itself, whatever its kind."""
        source: AnySource = getattr(self, self.kind)
        return source

    @property
    def value(self) -> ValueDeclaration | None:
        """What the values of records hold; none for bytes as they come, and for sources without records."""
        source = self.kafka or self.kinesis or self.iceberg
        return source.value if source is not None else None


class WatermarkDeclaration(Declared):
    """How far behind the newest event time a row may be before it is late, and how far ahead of the clock."""

    column: ColumnName = Field(description="the column that holds the event time")
    delay: Duration = Field(description="how long a row is waited for")
    max_ahead: Duration = Field(
        timedelta(days=1),
        description="how far an event time may be ahead of the clock; a row beyond goes to the quarantine and does not "
        "move the watermark. A stream without a quarantine stops, and only if this is declared",
    )


class InputDeclaration(Declared):
    """A named input of the transformation: rows that arrive (`stream`), or a table that is looked up (`static`)."""

    stream: SourceDeclaration | None = Field(None, description="the source of rows that arrive")
    static: SourceDeclaration | None = Field(None, description="the source of a table that is looked up")
    watermark: WatermarkDeclaration | None = Field(None, description="when a row of a stream is late")
    refresh: Duration | None = Field(
        None, description="how long a static input may be reused; unset: every batch reads it again"
    )

    @model_validator(mode="after")
    def _stream_or_static(self) -> Self:
        kind = one_of(self, "stream", "static")
        if kind == "static" and self.watermark is not None:
            raise wrong("a static input has no watermark: only rows that arrive can be late", "watermark")
        if kind == "stream" and self.refresh is not None:
            raise wrong("belongs to a static input: a stream input is always new", "refresh")
        self._source_can_be(kind)
        return self

    def _source_can_be(self, kind: str) -> None:
        declared = self.declared_source
        if kind == "static" and declared.kind in NEVER_STATIC:
            raise wrong("is a stream and cannot be a static input", "static", declared.kind)
        if kind == "stream" and declared.kind in NEVER_STREAM:
            raise wrong(
                "is a static input and cannot be a stream: a database does not report new rows",
                "stream",
                "jdbc",
            )
        if kind == "static" and declared.files is not None and "*" in declared.files.path:
            raise wrong("a static input is one folder with all that is in it: no `*`", "static", "files", "path")
        for key in (STATIC_ONLY if kind == "stream" else STREAM_ONLY).get(declared.kind, ()):
            if key in declared.source.model_fields_set:
                raise wrong(f"does not belong to a {kind} input", kind, declared.kind, key)

    @property
    def puts_files_away(self) -> bool:
        """Whether files are deleted or archived once the batch behind theirs begins."""
        return self.stream is not None and self.stream.files is not None and self.stream.files.afterwards != "keep"

    @property
    def is_stream(self) -> bool:
        """Whether rows arrive through this input."""
        return self.stream is not None

    @property
    def declared_source(self) -> SourceDeclaration:
        """The source, whichever way it is read."""
        source: SourceDeclaration = getattr(self, "static" if self.stream is None else "stream")
        return source
