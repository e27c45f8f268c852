"""The table properties that a declaration may give are those of the Iceberg that the platform runs."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sluice.declarations.table_properties import KNOWN, KNOWN_OF_COLUMNS, unchecked_property_problem

OF_TABLES = ("commit.", "history.", "read.", "write.")


def test_every_property_of_iceberg_is_known_or_refused_with_a_reason(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    fields = jvm.java.lang.Class.forName("org.apache.iceberg.TableProperties").getFields()
    values = [field.get(None) for field in fields if field.getType().getName() == "java.lang.String"]
    texts = {value for value in values if value is not None}  # the default of a codec's level is null
    listed = {*KNOWN, *KNOWN_OF_COLUMNS}

    assert listed - texts == set(), "Iceberg has no such property"
    others = {text for text in texts - listed if text.startswith(OF_TABLES)}
    assert [name for name in others if unchecked_property_problem(name, "x") is None] == []
