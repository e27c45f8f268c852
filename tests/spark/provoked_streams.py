"""Failures of a stream's data, schema, checkpoint, resources and code, provoked: each function lets the error out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.spark.provoking import COLUMNS, Place, TextError


def snapshot_expired(place: Place) -> None:
    """The snapshot at which the stream stands was expired with all before the next ones."""
    place.copying()
    place.run()
    for _ in range(2):
        place.add_rows()
    table = place.workshop.table("source")
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots()[:-1]]).commit()
    place.run()


def file_vanished(place: Place) -> None:
    """A data file of the source is gone."""
    place.copying()
    table = place.workshop.table("source")
    for task in table.scan().plan_files():
        table.io.delete(task.file.file_path)
    place.run()


def malformed_record(place: Place) -> None:
    """A record is not JSON, and the parser was told to fail."""
    parsed = "from_json(word, 'a INT', map('mode', 'FAILFAST')).a"
    place.copying(sql=f"SELECT id, CAST({parsed} AS STRING) AS word FROM records")  # noqa: S608  # no value of a user
    place.run()


def value_refused(place: Place) -> None:
    """A text is cast to a number, which ANSI mode refuses."""
    place.copying(sql="SELECT CAST(word AS BIGINT) AS id, word FROM records")
    place.run()


def division_by_zero(place: Place) -> None:
    """A value is divided by zero."""
    place.copying(sql="SELECT CAST(id / (id - 1) AS BIGINT) AS id, word FROM records")
    place.run()


def null_in_a_required_column(place: Place) -> None:
    """A row without a value that the table requires."""
    source = place.workshop.declare_table("source", COLUMNS)
    target = place.workshop.declare_table("target", COLUMNS, required=["word"])
    place.workshop.declare_stream(
        place.stream,
        sql="SELECT id, IF(id = 1, NULL, word) AS word FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"copies": {"iceberg": {"table": target}}},
    )
    place.add_rows()
    place.run()


def raised_on_purpose(place: Place) -> None:
    """The query itself refuses a record with raise_error."""
    place.copying(sql="SELECT id, IF(id = 2, raise_error('not a word'), word) AS word FROM records")
    place.run()


def ambiguous_merge(place: Place) -> None:
    """Two rows of a MERGE change the same row of the target."""
    spark, table = place.workshop.spark, place.workshop.declare_table("target", COLUMNS)
    name = f"{place.workshop.settings.catalog.name}.{table}"
    place.workshop.append("target", [{"id": 1, "word": "one"}])
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT * FROM VALUES (1, 'a'), (1, 'b') AS s(id, word)) s ON t.id = s.id "  # noqa: S608
        "WHEN MATCHED THEN UPDATE SET word = s.word"
    )


def column_missing(place: Place) -> None:
    """The transformation names a column that its input does not have."""
    place.copying(sql="SELECT id, name AS word FROM records")
    place.run()


def target_lost_a_column(place: Place) -> None:
    """Somebody dropped a column of the target."""
    place.copying()
    with place.workshop.table("target").update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("word")
    place.run()


def rows_have_another_type(place: Place) -> None:
    """The rows have a type that the target's column cannot hold."""
    place.copying(sql="SELECT array(id) AS id, word FROM records")
    place.run()


def write_of_another_type(place: Place) -> None:
    """Spark itself refuses to write rows of another type."""
    spark, table = place.workshop.spark, place.workshop.declare_table("target", COLUMNS)
    name = f"{place.workshop.settings.catalog.name}.{table}"
    spark.sql("SELECT array(1) AS id, 'one' AS word").writeTo(name).append()


def offset_log_damaged(place: Place) -> None:
    """The newest file of the offset log was cut off."""
    place.copying()
    place.run()
    place.add_rows()
    offsets = place.workshop.checkpoint(place.stream) / "offsets"
    (offsets / "0").write_text("v1\n{")
    for other in offsets.glob(".0.crc"):
        other.unlink()
    place.run()


def checkpoint_metadata_lost(place: Place) -> None:
    """The checkpoint's own file was deleted."""
    place.copying()
    place.run()
    place.add_rows()
    (place.workshop.checkpoint(place.stream) / "metadata").unlink()
    place.run()


def _counting(place: Place, *, sql: str) -> None:
    source = place.workshop.declare_table("source", COLUMNS)
    target = place.workshop.declare_table("counts", {"word": "string", "rows": "long"})
    place.workshop.declare_stream(
        place.stream,
        sql=sql,
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"counts": {"iceberg": {"table": target, "mode": "merge", "keys": ["word"]}}},
    )


def state_lost(place: Place) -> None:
    """The files of the state store are gone."""
    _counting(place, sql="SELECT word, count(*) AS rows FROM records GROUP BY word")
    place.add_rows()
    place.run()
    place.workshop.spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]  # py4j
    for partition in (place.workshop.checkpoint(place.stream) / "state" / "0").iterdir():
        if partition.name.isdigit():
            shutil.rmtree(partition)
    place.add_rows()
    place.run()


def stateful_query_changed(place: Place) -> None:
    """The grouping of a stateful stream was changed."""
    _counting(place, sql="SELECT word, count(*) AS rows FROM records GROUP BY word")
    place.add_rows()
    place.run()
    _counting(place, sql="SELECT word, count(*) AS rows FROM records GROUP BY word, id")
    place.add_rows()
    place.run()


def worker_died(place: Place) -> None:
    """The Python worker of a user's function ended, as when the system runs out of memory."""
    _with_function(place, "import os; os._exit(137)")


def python_out_of_memory(place: Place) -> None:
    """A user's function asks for more memory than there is."""
    _with_function(place, "bytearray(1 << 60)")


def no_space_for_python(place: Place) -> None:
    """A user's function writes onto a full device."""
    _with_function(place, "open('/dev/full', 'w', buffering=1).write('x' * 10 + chr(10))")


def java_out_of_memory(place: Place) -> None:
    """Spark's heap is too small for what a query collects."""
    code = (
        "from pyspark.sql import SparkSession; s = SparkSession.builder.config('spark.driver.maxResultSize', '0')"
        ".config('spark.ui.enabled', 'false').getOrCreate(); "
        "s.range(4000).selectExpr(\"repeat('x', 1000000) AS x\").collect()"
    )
    said = subprocess.run(  # noqa: S603  # ours
        [sys.executable, "-c", code],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--driver-memory 512m --master local[1] pyspark-shell"},
        capture_output=True,
        text=True,
        check=False,
    )
    raise TextError(said.stderr[-60_000:])


def disk_full(place: Place) -> None:
    """The checkpoint lies on a full file system."""
    small = place.folder / "small"
    small.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True)  # noqa: S603  # ours
    try:
        (small / "filler").write_bytes(b"x" * 60_000)
        rows = place.workshop.spark.readStream.format("rate").load()
        rows.writeStream.format("noop").option("checkpointLocation", f"{small}/checkpoint").trigger(
            availableNow=True
        ).start().awaitTermination()
    finally:
        subprocess.run(["/bin/umount", str(small)], check=True)  # noqa: S603  # ours


def _with_function(place: Place, statement: str) -> None:
    place.copying(
        python=(
            "from pyspark.sql import functions as fn\n\n\n"
            "def transform(records):\n"
            "    @fn.udf('string')\n"
            "    def shout(word):\n"
            f"        {statement}\n"
            "        return word\n\n"
            "    return records.select('id', shout('word').alias('word'))\n"
        )
    )
    place.run()


def transformation_raises(place: Place) -> None:
    """The Python transformation raises while the stream is planned."""
    place.copying(python="def transform(records):\n    return records.select({}['absent'])\n")
    place.run()


def function_raises(place: Place) -> None:
    """A user's function raises for a row."""
    _with_function(place, "[][len(word)]")


def function_cannot_reach(place: Place) -> None:
    """A user's function asks a service that does not answer."""
    _with_function(place, "import urllib.request; urllib.request.urlopen('http://127.0.0.1:1')")


def module_missing(place: Place) -> None:
    """The transformation imports what is not installed."""
    place.copying(python="import not_installed_anywhere\n\n\ndef transform(records):\n    return records\n")
    place.run()


def query_refused(place: Place) -> None:
    """Spark cannot run such a query as a stream."""
    place.copying(sql="SELECT id, word FROM records ORDER BY id")
    place.run()


def query_not_parsed(place: Place) -> None:
    """The query is no SQL."""
    place.copying(sql="SELEKT id FROM records")
    place.run()
