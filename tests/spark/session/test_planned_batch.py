"""A batch is planned in the offset log as a whole, or as it was planned before."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from sluice_spark.session.checkpoint_metadata import find_log_text, write_log_entry


def test_a_planned_batch_is_replaced_by_another_file(spark: SparkSession, tmp_path: Path) -> None:
    """A process that dies while it writes has changed nothing of the one before."""
    write_log_entry(spark, tmp_path.as_uri(), "offsets", 3, "v1\nbefore")
    kept = tmp_path / "kept"
    os.link(tmp_path / "offsets" / "3", kept)

    write_log_entry(spark, tmp_path.as_uri(), "offsets", 3, "v1\nafter")

    assert kept.read_text() == "v1\nbefore"
    assert find_log_text(spark, tmp_path.as_uri(), "offsets/3") == "v1\nafter"
    assert [path.name for path in (tmp_path / "offsets").iterdir() if not path.name.startswith(".")] == ["3"]
