"""What a source's declaration refuses, with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

ICEBERG = "iceberg: {table: bronze.flights}\n    watermark: {column: departure, delay: 6 hours}"
FILES = "connection: c, format: text"


def problems_with(valid: Folder, source: str) -> list[str]:
    """What is wrong with the valid stream when its stream input is this one."""
    file = valid.path / "silver_flights.stream.yaml"
    valid.write(file.name, file.read_text().replace(ICEBERG, source, 1))
    return valid.problems()


@pytest.mark.parametrize(
    ("source", "key", "sentence"),
    [
        (f"files: {{{FILES}, afterwards: archive}}", "files.archive_path", "belongs to `afterwards: archive`"),
        (f"files: {{{FILES}, archive_path: old}}", "files.archive_path", "belongs to `afterwards: archive`"),
        (
            f"files: {{{FILES}, path: in, afterwards: archive, archive_path: in/old}}",
            "files.archive_path",
            "lies outside `path`, in, got 'in/old'",
        ),
        (
            f"files: {{{FILES}, path: in/*/a, afterwards: archive, archive_path: in/old}}",
            "files.archive_path",
            "lies outside `path`, in/*/a, got 'in/old'",
        ),
        (
            f"files: {{{FILES}, afterwards: archive, archive_path: old}}",
            "files.archive_path",
            "lies outside `path`, which is the whole folder",
        ),
        (
            "files: {connection: c, format: text, on_malformed: quarantine}",
            "files.on_malformed",
            "only lines of json and csv can be put aside, not text",
        ),
        (
            "files: {connection: c, format: parquet, columns: [{name: a, type: int, field: b}]}",
            "files.columns[0].field",
            "belongs to json and to csv with a header; parquet is read by the names of its columns",
        ),
        (
            "files: {connection: c, format: csv, header: false, columns: [{name: a, type: int, field: b}]}",
            "files.columns[0].field",
            "belongs to json and to csv with a header",
        ),
        (
            "files: {connection: c, format: csv, columns: [{name: a, type: int, field: b}, {name: b, type: int}]}",
            "files.columns[0].field",
            "the field b is another column already",
        ),
        ("delta: {connection: c, path: t, version: 3}", "delta.version", "does not belong to a stream input"),
        ("jdbc: {connection: c, table: t}", "jdbc", "is a static input and cannot be a stream"),
    ],
)
def test_a_stream_input_is_refused_with_its_place(valid: Folder, source: str, key: str, sentence: str) -> None:
    (problem,) = problems_with(valid, source)
    assert problem.startswith(f"silver_flights.stream.yaml:9: `inputs.flights.stream.{key}`: {sentence}")


def test_an_archive_beside_the_folder_is_valid(valid: Folder) -> None:
    assert problems_with(valid, f"files: {{{FILES}, path: in, afterwards: archive, archive_path: old}}") == []


def test_an_incremental_stream_of_kinesis_has_no_limit(valid: Folder) -> None:
    file = valid.path / "silver_flights.stream.yaml"
    text = file.read_text().replace(
        "continuous\ntrigger: {processing_time: 2 seconds}", "incremental\nschedule: {cron: '@daily'}"
    )
    kinesis = "kinesis: {connection: c, stream: s, max_records_per_batch: 3}"
    valid.write(file.name, text.replace(ICEBERG, kinesis, 1))
    (problem,) = valid.problems()
    assert "`inputs.flights.stream.kinesis.max_records_per_batch`: belongs to a continuous stream" in problem


@pytest.mark.parametrize(
    ("source", "key", "sentence"),
    [
        ("files: {connection: c, format: text, latest_first: true}", "files.latest_first", "does not belong to a"),
        ("files: {connection: c, format: text, path: a/*}", "files.path", "a static input is one folder"),
        ("delta: {connection: c, path: t, max_files_per_batch: 1}", "delta.max_files_per_batch", "does not belong"),
        ("socket: {host: localhost, port: 1}", "socket", "is a stream and cannot be a static input"),
    ],
)
def test_a_static_input_is_refused_with_its_place(valid: Folder, source: str, key: str, sentence: str) -> None:
    file = valid.path / "silver_flights.stream.yaml"
    valid.write(file.name, file.read_text().replace("iceberg: {table: reference.airlines}", source, 1))
    (problem,) = valid.problems()
    assert problem.startswith(f"silver_flights.stream.yaml:13: `inputs.airlines.static.{key}`: {sentence}")


VALUE = "value: {format: json, columns: [{name: a, type: int}]}"
LINES = "files: {connection: c, format: csv, columns: [{name: flight, type: string}], on_malformed: quarantine}"
KAFKA = f"kafka: {{connection: c, topics: [t], {VALUE}}}"


def test_lines_that_are_put_aside_need_a_quarantine(valid: Folder) -> None:
    assert problems_with(valid, LINES) == []
    file = valid.path / "silver_flights.stream.yaml"
    valid.write(file.name, file.read_text().replace("quarantine: true\n", ""))
    (problem,) = valid.problems()
    assert problem.startswith(
        "silver_flights.stream.yaml:9: `inputs.flights.stream.files.on_malformed`: lines that are put aside go to the "
        "quarantine: write `quarantine: true`"
    )


def test_kinesis_has_no_tombstones(valid: Folder) -> None:
    value = f"{VALUE.removesuffix('}')}, tombstones: ignore}}"
    (problem,) = problems_with(valid, f"kinesis: {{connection: c, stream: s, {value}}}")
    assert "`inputs.flights.stream.kinesis.value.tombstones`: belongs to Kafka: each record of Kinesis" in problem


def test_masked_columns_are_those_of_the_sender(valid: Folder) -> None:
    """What is masked is found by the names in the record, so that another name could show a masked value."""
    columns = "[{name: a, type: string, field: b}, {name: b, type: string, field: a}]"
    kafka = f"kafka: {{connection: c, topics: [t], value: {{format: json, columns: {columns}}}}}"
    assert problems_with(valid, kafka) == []
    file = valid.path / "silver_flights.stream.yaml"
    valid.write(file.name, f"{file.read_text()}masked_columns: [a]\n")

    (problem,) = valid.problems()

    assert "masks columns by their names, and the input flights has columns with another `field`" in problem


def test_values_that_are_decoded_need_a_quarantine(valid: Folder) -> None:
    assert problems_with(valid, KAFKA) == []
    file = valid.path / "silver_flights.stream.yaml"
    valid.write(file.name, file.read_text().replace("quarantine: true\n", ""))
    (problem,) = valid.problems()
    assert problem.startswith(
        "silver_flights.stream.yaml:9: `inputs.flights.stream.kafka.value`: values that cannot be decoded go to the "
        "quarantine: write `quarantine: true`"
    )


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("{format: json}", "exactly one of columns, schema_file and subject is needed: it names the fields"),
        (
            "{format: json, columns: [{name: record, type: int}]}",
            "`record` is the name of the column that holds the record itself",
        ),
        ("{format: json, schema_file: a.json}", "a.json cannot be used: it cannot be read: No such file or directory"),
        ("{format: json, subject: s}", "is in a schema registry: add `registry`, a connection of the deployment"),
        ("{format: avro, schema_file: a.avsc, version: 2}", "belongs to a subject"),
        ("{format: avro, schema_file: a.avsc, message: m}", "belongs to protobuf, not to avro"),
        ("{format: avro, schema_file: a.proto}", "a `.proto` file and the format protobuf go together"),
        ("{format: protobuf, schema_file: a.avsc}", "a `.proto` file and the format protobuf go together"),
        ("{format: protobuf, columns: [{name: a, type: int}]}", "protobuf needs the numbers of fields"),
        ("{format: avro, columns: [{name: a, type: int}]}", "avro needs the schema that the values were written with"),
    ],
)
def test_a_value_is_refused_with_its_place(valid: Folder, value: str, sentence: str) -> None:
    (problem,) = problems_with(valid, f"kafka: {{connection: c, topics: [t], value: {value}}}")
    assert problem.startswith("silver_flights.stream.yaml:9: `inputs.flights.stream.kafka.value")
    assert sentence in problem
