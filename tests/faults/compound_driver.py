"""A driver in which several things fail together; `spark-submit` starts it, as it starts a stream.

    spark-submit tests/faults/compound_driver.py --run-id=… --situation=waiting --place=FILE

It writes FILE when it is at the place where its JVM is to be killed. What uses up the memory waits for FILE.go then.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from sluice.ledger.connection import open_ledger
from sluice.processes.deadline import wait_until
from sluice_spark.run.job import recorded_end, run_job

_GONE = "127.0.0.1:1"
"""Where nothing listens."""


def wait_in_the_jvm(spark: SparkSession, place: Path) -> None:
    """A call to the JVM that does not come back."""
    place.touch()
    spark._jvm.java.lang.Thread.sleep(600_000)  # type: ignore[union-attr]  # py4j has no types


def wait_for_kafka(spark: SparkSession, place: Path) -> None:
    """A query whose brokers do not answer; it asks them for a minute."""
    rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", _GONE).option("subscribe", "t").load()
    query = rows.writeStream.format("noop").start()
    place.touch()
    query.awaitTermination()


def fail_for_a_full_disk(spark: SparkSession, place: Path) -> None:
    """A disk that is full, and a JVM that is lost while the run cleans up."""
    _clean_up_after(lambda: Path("/dev/full").write_text("checkpoint"), spark, place)


def miss_catalog_and_object_store(spark: SparkSession, place: Path) -> None:
    """A table whose catalog does not answer, and neither does the object store with its files."""
    place.touch()
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": f"http://{_GONE}",
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".s3.endpoint": f"http://{_GONE}",
    }.items():
        spark.conf.set(f"spark.sql.catalog.gone{key}", value)
    spark.table("gone.bronze.flights").collect()


def use_up_the_memory(spark: SparkSession, place: Path) -> None:
    """Arrays in the heap of the JVM, until the kernel ends it."""
    place.touch()
    wait_until(place.with_suffix(".go").exists, bool, seconds=120)
    held = [spark.sparkContext._gateway.new_array(spark._jvm.byte, 64 * 1024**2) for _ in range(200)]  # type: ignore[union-attr]  # py4j has no types
    sys.exit(f"{len(held)} arrays fit into the memory")


SITUATIONS: Mapping[str, Callable[[SparkSession, Path], None]] = {
    "waiting": wait_in_the_jvm,
    "waiting_for_kafka": wait_for_kafka,
    "failed_for_a_full_disk": fail_for_a_full_disk,
    "without_catalog_and_object_store": miss_catalog_and_object_store,
    "memory_used_up": use_up_the_memory,
}


def _clean_up_after(work: Callable[[], object], spark: SparkSession, place: Path) -> None:
    try:
        work()
    finally:
        place.touch()
        while True:  # until the JVM is lost
            try:
                spark._jvm.java.lang.System.currentTimeMillis()  # type: ignore[union-attr]  # py4j has no types
            except (Py4JError, OSError):
                break
            time.sleep(0.1)
        spark.stop()


def main() -> int:
    """Run until the end that the situation leads to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--situation", choices=sorted(SITUATIONS), required=True)
    parser.add_argument("--place", type=Path, required=True)
    options = parser.parse_args()

    def work() -> None:
        with open_ledger(os.environ["SLUICE_LEDGER_URL"]) as ledger, recorded_end(ledger, options.run_id):
            SITUATIONS[options.situation](SparkSession.builder.getOrCreate(), options.place)

    return run_job(work)


if __name__ == "__main__":
    sys.exit(main())
