"""An increment as one writes it with PySpark and Iceberg's sink; see `benchmarks.increment_time`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from sluice.settings import load_settings
from sluice_spark.session.session import catalog_conf


def main(arguments: Sequence[str] | None = None) -> int:
    """Read what is new in a table, write it to another one, and end."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("source", "target", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args(arguments)
    settings = load_settings()
    builder = SparkSession.builder.appName("plain increment")
    builder = builder.config(map={**catalog_conf(settings.catalog, settings.object_store)})
    spark = builder.config(
        "spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    ).getOrCreate()
    rows = spark.readStream.table(f"{settings.catalog.name}.{options.source}")
    changed = rows.selectExpr("id", "at", "sha2(word, 256) AS word")
    writer = changed.writeStream.format("iceberg").option("checkpointLocation", options.checkpoint)
    writer.trigger(availableNow=True).toTable(f"{settings.catalog.name}.{options.target}").awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
