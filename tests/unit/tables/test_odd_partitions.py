"""A value that no calendar of Python has keeps no table from being observed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.types import DateType, NestedField

from sluice.tables.inspection import observe_table


class _Append(_FastAppendFiles):
    """pyiceberg cannot spell such a partition for the summary of a snapshot; Spark can."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        return Summary(operation=self._operation, **snapshot_properties)


def test_a_day_after_9999_is_a_partition_that_no_filter_names(tmp_path: Path) -> None:
    """Spark writes such days."""
    catalog = SqlCatalog("odd", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("silver")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    table = catalog.create_table("silver.rows", schema=Schema(NestedField(1, "day", DateType())), partition_spec=spec)
    with (
        table.transaction() as transaction,
        _Append(operation=Operation.APPEND, transaction=transaction, io=table.io) as append,
    ):
        for days in (1, 10_000_000):
            file = DataFile.from_args(
                _table_format_version=2,
                content=DataFileContent.DATA,
                file_path=f"{table.location()}/data/{days}.parquet",
                file_format=FileFormat.PARQUET,
                partition=Record(days),
                record_count=1,
                file_size_in_bytes=100,
            )
            file.spec_id = table.spec().spec_id
            append.append_data_file(file)

    seen = observe_table(
        table.refresh(), name="silver.rows", small_file_bytes=1, now=datetime(2026, 11, 30, tzinfo=UTC)
    )

    assert [(one.partition, one.filter is None) for one in seen.partitions] == [
        ("day=10000000", True),
        ("day=1970-01-02", False),
    ]
