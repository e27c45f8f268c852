"""Brings the rows of a case to where its stream reads them: a table, files of a folder, or a topic."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyarrow import parquet
from tests.differential.case import Case, Row
from tests.differential.column_kinds import json_value
from tests.differential.oracle import arrow_types
from tests.fixtures.workshop import Workshop

from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.sources.kafka_clients import client_settings

CONTINUOUS = {"mode": "continuous", "trigger": {"processing_time": "20 milliseconds"}}


def cut(case: Case, rows: Sequence[Row]) -> list[Sequence[Row]]:
    """The rows of a turn, batch by batch: a file is a batch where the source has such a limit."""
    if case.source in ("iceberg", "kafka") or len(rows) < 2:
        return [rows]
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]]


@dataclass(slots=True, kw_only=True)
class ArrivingRows:
    """The source of a case."""

    case: Case
    workshop: Workshop
    _files: int = field(default=0, init=False)

    @property
    def declaration(self) -> dict[str, Any]:
        """The input of the stream."""
        return {"stream": self._source(), **self._watermark()}

    @property
    def how(self) -> dict[str, Any]:
        """The mode of the stream; nothing for an incremental one."""
        return dict(CONTINUOUS) if self.case.source == "iceberg_continuous" else {}

    @property
    def _columns(self) -> list[dict[str, str]]:
        return [{"name": name, "type": kind} for name, kind in self.case.source_columns.items()]

    def _watermark(self) -> dict[str, Any]:
        if self.case.delay_seconds is None:
            return {}
        return {"watermark": {"column": "moment", "delay": f"{self.case.delay_seconds} seconds"}}

    def _source(self) -> dict[str, Any]:
        match self.case.source:
            case "iceberg":
                return {"iceberg": {"table": self.workshop.table_name("source")}}
            case "iceberg_continuous":
                return {"iceberg": {"table": self.workshop.table_name("source"), "max_files_per_batch": 1}}
            case "kafka":
                value = {"format": "json", "columns": self._columns}
                return {"kafka": {"connection": "flights_kafka", "topics": [self._topic], "value": value}}
            case "json" | "csv" | "parquet":
                read = {"connection": "here", "path": "in", "format": self.case.source, "columns": self._columns}
                return {"files": {**read, "max_files_per_batch": 1}}

    def create(self) -> None:
        """Create the folder or the topic; a table is only declared."""
        match self.case.source:
            case "iceberg" | "iceberg_continuous":
                self.workshop.declare_table("source", self.case.source_columns, is_created=False)
            case "kafka":
                admin = AdminClient(self._kafka)
                admin.create_topics([NewTopic(self._topic, 1, 1)])[self._topic].result()
            case _:
                self._folder.mkdir()

    def add_column(self) -> None:
        """Add a column that no query names."""
        self.workshop.declare_table("source", {**self.case.source_columns, "added": "string"})

    def bring(self, rows: Sequence[Row]) -> None:
        """Add rows that are one batch, or a part of one."""
        match self.case.source:
            case "iceberg" | "iceberg_continuous":
                self.workshop.append("source", [_for_arrow(row, self.case.key) for row in rows])
            case "kafka":
                producer = Producer(self._kafka)
                for _ in range(self.case.malformed):
                    producer.produce(self._topic, value="{")
                for row in rows:
                    producer.produce(self._topic, value=_json(row))
                if producer.flush(30):
                    raise TimeoutError("the broker has not taken all records")
            case _:
                self._write_file(rows)

    def _write_file(self, rows: Sequence[Row]) -> None:
        self._files += 1
        file = self._folder / f"{self._files:04}.{self.case.source}"
        hidden = file.with_name(f".{file.name}")
        match self.case.source:
            case "json":
                hidden.write_text("".join(f"{_json(row)}\n\n" for row in rows))  # a blank line is no row
            case "csv":
                hidden.write_text(_csv(list(self.case.source_columns), rows), newline="")
            case _:
                schema = pa.schema(list(arrow_types(self.case).items()))
                parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema), hidden)
        os.utime(hidden, (self._files, 1_700_000_000 + self._files))  # Spark reads the oldest file first
        hidden.rename(file)

    @property
    def _folder(self) -> Path:
        return self.workshop.folder.parent / "in"

    @property
    def _topic(self) -> str:
        return f"t{self.workshop.namespace}"

    @property
    def _kafka(self) -> dict[str, Any]:
        return {**client_settings(self.workshop.settings.connection("flights_kafka", KafkaConnection))}


def with_files(settings: Settings, folder: Path) -> Settings:
    """The settings with a connection to a local folder."""
    here = FilesConnection(kind="files", root=folder.as_uri())
    return settings.model_copy(update={"connections": {**settings.connections, "here": here}})


def _for_arrow(row: Row, key: str) -> dict[str, Any]:
    if key != "uuid" or row["k"] is None:
        return dict(row)
    return {**row, "k": UUID(row["k"]).bytes}


def _json(row: Row) -> str:
    return json.dumps({name: json_value(value) for name, value in row.items()})


def _csv(names: Sequence[str], rows: Sequence[Row]) -> str:
    """As RFC 4180 says: a null is an empty field, an empty text is quoted."""
    lines = [",".join(names), *(",".join(_csv_field(row[name]) for name in names) for row in rows)]
    return "".join(f"{line}\r\n" for line in lines)


def _csv_field(value: Any) -> str:
    if value is None:
        return ""
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(json_value(value))
    return '"' + text.replace('"', '""') + '"'
