"""Files of every format are read as declared, from local disk and from S3."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from botocore.config import Config
from pyarrow import csv, orc, parquet
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.drill import sampled
from tests.fixtures.streaming import drained, open_declared, running

from sluice.settings import FilesConnection, Settings

COLUMNS = [{"name": "origin", "type": "string"}, {"name": "temp", "type": "double"}]
WEATHER = pa.table({"origin": ["EWR", "JFK"], "temp": [39.5, None], "unknown": [1, 2]})
READ: list[dict[str, Any]] = [{"origin": "EWR", "temp": 39.5}, {"origin": "JFK", "temp": None}]


def at(settings: Settings, folder: Path) -> Settings:
    """The settings with a connection `here` to a local folder."""
    here = FilesConnection(kind="files", root=folder.as_uri())
    return settings.model_copy(update={"connections": {**settings.connections, "here": here}})


def by_origin(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in a known order."""
    return sorted(rows, key=lambda row: str(row["origin"]))


def write_weather(spark: SparkSession, folder: Path, kind: str) -> None:
    """The weather in a file of a format; json has a field that is not declared."""
    file = folder / "a"
    match kind:
        case "json":
            file.write_text('{"origin": "EWR", "temp": 39.5, "unknown": 1}\n{"origin": "JFK"}\n')
        case "csv":  # the columns are found by their names
            csv.write_csv(WEATHER.select(["temp", "origin"]), file)
        case "parquet":
            parquet.write_table(WEATHER, file)
        case "orc":
            orc.write_table(WEATHER, file)
        case "avro":
            written = folder.with_name("written")
            spark.createDataFrame(WEATHER.to_pandas()).selectExpr("origin", "nullif(temp, 'NaN') temp").coalesce(
                1
            ).write.format("avro").save(str(written))
            next(written.glob("*.avro")).rename(folder / "a.avro")
        case "text":
            file.write_text("EWR\nJFK\n")


KINDS = ["json", "csv", "parquet", "orc", "avro", "text"]


# Every run reads Avro by `test_typed_files.py`.
@pytest.mark.parametrize("kind", sampled(KINDS, {*KINDS} - {"avro"}, full=["avro"]))
def test_every_format_is_read_as_a_stream_and_as_a_static_input(
    spark: SparkSession, settings: Settings, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "in" / "weather"
    folder.mkdir(parents=True)
    write_weather(spark, folder, kind)
    source: dict[str, Any] = {"connection": "here", "path": "weather", "format": kind}
    expected: list[dict[str, Any]] = READ
    if kind == "text":
        expected = [{"value": "EWR"}, {"value": "JFK"}]
    else:
        source["columns"] = COLUMNS
    here = at(settings, tmp_path / "in")

    arriving = drained(spark, open_declared(spark, here, stream={"files": source}), tmp_path)
    looked_up = open_declared(spark, here, static={"files": source}).collect()

    assert sorted(arriving, key=str) == expected
    assert sorted((row.asDict() for row in looked_up), key=str) == expected


def test_a_row_shows_its_file(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_weather(spark, tmp_path / "in", "json")
    source = {"connection": "here", "format": "json", "columns": COLUMNS}
    rows = open_declared(spark, at(settings, tmp_path / "in"), stream={"files": source})

    assert {row["file_name"] for row in drained(spark, rows.select("_metadata.file_name"), tmp_path)} == {"a"}


@pytest.mark.parametrize(
    ("header", "problem", "unknown"),
    [
        ("origin,temp,wind", "`wind`", "fail"),
        ("temp", "lacks origin", "ignore"),
        ("a,b", "lacks origin", "ignore"),
    ],
)
def test_a_file_whose_header_lacks_or_adds_columns_stops_the_stream(
    spark: SparkSession, settings: Settings, tmp_path: Path, header: str, problem: str, unknown: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text(f"{header}\nEWR,1,2\n")
    columns = [COLUMNS[0] | {"required": True}, *COLUMNS[1:]]
    source = {"connection": "here", "format": "csv", "columns": columns, "on_unknown_field": unknown}
    rows = open_declared(spark, at(settings, folder), stream={"files": source})

    with pytest.raises(Exception, match=rf"{problem}.*, in file:.*/in/a\.csv"):
        drained(spark, rows, tmp_path)


def test_old_and_new_csv_files_of_a_folder_are_read_together(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    """A column was added after the first file, undeclared ones came and went, and quotes stay right."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text('origin\nEWR\n"a ""b"", c"\n')
    (folder / "b.csv").write_text("temp,origin\n1.5,JFK\n")
    (folder / "c.csv").write_text('wind,temp,gust,origin\n7,2.5,,"two\nlines"\n8,,x,""\n9,3.5,,\n')
    source = {"connection": "here", "format": "csv", "columns": COLUMNS}
    rows = open_declared(spark, at(settings, folder), stream={"files": source})

    found = {(row["origin"], row["temp"]) for row in drained(spark, rows, tmp_path)}

    assert found == {
        ("EWR", None), ('a "b", c', None), ("JFK", 1.5), ("two\nlines", 2.5), ("", None), (None, 3.5),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"@timestamp": "a", "Temp": 1.5, "temp": 9}\n{"@timestamp": null, "at": "x"}\n'),
        ("csv", "temp,@timestamp,Temp\n9,a,1.5\n,,\n"),
    ],
)
def test_a_field_whose_name_is_none_of_a_column_is_read_under_another(
    spark: SparkSession, settings: Settings, tmp_path: Path, kind: str, text: str
) -> None:
    """Names that differ in case only, too."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_text(text)
    columns = [
        {"name": "at", "type": "string", "field": "@timestamp"},
        {"name": "celsius", "type": "double", "field": "Temp"},
    ]
    source = {"connection": "here", "format": kind, "columns": columns}
    rows = open_declared(spark, at(settings, folder), stream={"files": source})

    found = drained(spark, rows, tmp_path)

    assert sorted(found, key=str) == [{"at": "a", "celsius": 1.5}, {"at": None, "celsius": None}]


def test_a_line_of_another_width_than_its_header_is_refused(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    """Spark takes it for a good line, because it has as many fields as there are declared columns."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("origin,temp,wind\nEWR,1,2\nJFK,2\n")
    source = {"connection": "here", "format": "csv", "columns": COLUMNS}
    rows = open_declared(spark, at(settings, folder), stream={"files": source})

    with pytest.raises(Exception, match=r"the line has 2 fields, not 3, in file:.*/in/a\.csv"):
        drained(spark, rows, tmp_path)


def test_quotes_and_line_breaks_are_taken_as_rfc_4180_says(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    text = 'temp,origin\r\n1,"say ""hi"""\r\n2,"two\nlines"\r\n3, padded \r\n4,\r\n5,""\r\n6,back\\slash\r\n'
    (folder / "a.csv").write_bytes(text.encode())
    (folder / "b.csv").write_text("origin,temp\nother order,7\n")
    source = {"connection": "here", "format": "csv", "columns": COLUMNS}
    rows = open_declared(spark, at(settings, folder), stream={"files": source})

    found = {row["temp"]: row["origin"] for row in drained(spark, rows, tmp_path)}

    assert found == {
        1: 'say "hi"',
        2: "two\nlines",
        3: " padded ",
        4: None,
        5: "",
        6: "back\\slash",
        7: "other order",
    }


def test_a_damaged_file_stops_the_stream(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"temp": "warm"}\n')
    source = {"connection": "here", "format": "json", "columns": [{"name": "temp", "type": "double"}]}
    rows = open_declared(spark, at(settings, folder), stream={"files": source})

    with pytest.raises(Exception, match=r"Expected `float \| null`, got `str`, at `\$\.temp`, in file:.*/in/a\.json"):
        drained(spark, rows, tmp_path)


def test_a_required_value_that_is_absent_stops_the_stream_even_when_the_column_is_not_used(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_weather(spark, folder, "json")
    columns = [COLUMNS[0], {**COLUMNS[1], "required": True}]
    source = {"connection": "here", "format": "json", "columns": columns}
    rows = open_declared(spark, at(settings, folder), stream={"files": source})

    with pytest.raises(Exception, match=r"the value lacks required columns: temp, in file:.*/in/a"):
        drained(spark, rows.select("origin"), tmp_path)
    (folder / "a").write_text('{"origin": "EWR", "temp": 1}\n')
    assert drained(spark, rows, tmp_path) == [{"origin": "EWR", "temp": 1.0}]


def test_a_folder_that_does_not_exist_yet_is_an_empty_input(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    source = {"connection": "here", "path": "later/weather", "format": "json", "columns": COLUMNS}
    rows = open_declared(spark, at(settings, tmp_path / "in"), stream={"files": source})

    with running(spark, rows, tmp_path) as query:
        assert query.rows() == []
        (tmp_path / "in" / "later" / "weather").mkdir(parents=True)
        write_weather(spark, tmp_path / "in" / "later" / "weather", "json")
        assert by_origin(query.rows()) == READ


def test_batches_have_so_many_files_the_newest_first(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(str(number))
        set_age(folder / f"{number}.txt", seconds=100 - number)
    batches: list[list[str]] = []

    def note(batch: DataFrame, number: int) -> None:
        batches.append([row.value for row in batch.collect()])

    source = {"connection": "here", "format": "text", "max_files_per_batch": 2}
    for newest_first in (False, True):
        limited = {**source, "latest_first": newest_first}
        rows = open_declared(spark, at(settings, folder), stream={"files": limited})
        writer = rows.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / str(newest_first)))
        writer.trigger(availableNow=True).start().awaitTermination()

    assert [sorted(batch) for batch in batches] == [["0", "1"], ["2"], ["1", "2"], ["0"]]


def test_a_file_is_read_however_old_it_is(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source = {"connection": "here", "format": "text"}
    for number, age_seconds in enumerate((0, 400 * 86400)):
        (folder / f"{number}.txt").write_text(str(number))
        set_age(folder / f"{number}.txt", seconds=age_seconds)
    rows = open_declared(spark, at(settings, folder), stream={"files": source})

    assert sorted(row["value"] for row in drained(spark, rows, tmp_path)) == ["0", "1"]


def set_age(file: Path, *, seconds: float) -> None:
    """Let a file be so old."""
    then = time.time() - seconds
    os.utime(file, (then, then))


def test_files_lie_on_s3_too(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    store = settings.object_store
    assert store.access_key_id is not None
    assert store.secret_access_key is not None
    client = boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        region_name=store.region,
        aws_access_key_id=store.access_key_id.get_secret_value(),
        aws_secret_access_key=store.secret_access_key.get_secret_value(),
        config=Config(request_checksum_calculation="when_required", response_checksum_validation="when_required"),
    )
    path = f"files_source/{tmp_path.name}"
    source = {"connection": "landing", "path": path, "format": "json", "columns": COLUMNS}
    rows = open_declared(spark, settings, stream={"files": source})

    with running(spark, rows, tmp_path) as query:
        assert query.rows() == []
        client.put_object(Bucket="landing", Key=f"{path}/a.json", Body=b'{"origin": "EWR", "temp": 39.5}\n')
        assert query.rows() == READ[:1]
        client.put_object(Bucket="landing", Key=f"{path}/b.json", Body=b'{"origin": "JFK"}\n')
        assert by_origin(query.rows()) == READ
