"""Spark's Python workers import pyspark from where it is installed, not from Spark's archive of it."""

from __future__ import annotations

import sys
from pathlib import Path

from sluice_spark.session.worker_daemon import without_archives

ARCHIVES = [
    "/spark/python/lib/pyspark.zip",
    "/spark/python/lib/py4j-0.10.9.9-src.zip",
    "/spark/jars/spark-core_2.13-4.1.3.jar",
]


def test_archives_of_spark_are_left_out_of_the_path() -> None:
    own = ["/project/jobs", "/project/users.zip"]

    assert without_archives([*ARCHIVES, *own, *sys.path]) == [*own, *sys.path]


def test_archives_stay_where_pyspark_is_in_them_only(tmp_path: Path) -> None:
    assert without_archives([*ARCHIVES, str(tmp_path)]) == [*ARCHIVES, str(tmp_path)]
