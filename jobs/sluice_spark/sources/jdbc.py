"""A table of a database as a static input.

Source of the options: https://spark.apache.org/docs/4.1.0/sql-data-sources-jdbc.html
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.source_declarations import JdbcSource
from sluice.settings import JdbcConnection

_DRIVER = "org.postgresql.Driver"


def read_static(spark: SparkSession, source: JdbcSource, connection: JdbcConnection) -> DataFrame:
    """Read the table as it is when a batch begins, with one query each time."""
    options = {"url": connection.url, "dbtable": source.table, "driver": _DRIVER}
    if connection.user is not None:
        options["user"] = connection.user
    if connection.password is not None:
        options["password"] = connection.password.get_secret_value()
    return spark.read.format("jdbc").options(**options).load()
