"""Where the data files of a table lie, by the properties that its owner may have set."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from sluice.publication.data_files import commit_id, data_folder, is_of_commit

OF_OBJECTS = {"write.object-storage.path": "s3://b/objects/"}
"""The folder that counts while object storage is enabled, which no engine enables by itself."""


@pytest.mark.parametrize(
    ("properties", "folder"),
    [
        ({}, "s3://b/t/data"),
        ({"write.data.path": "s3://b/named/"}, "s3://b/named"),
        ({"write.folder-storage.path": "s3://b/folder"}, "s3://b/folder"),
        (OF_OBJECTS, "s3://b/t/data"),
        ({**OF_OBJECTS, "write.object-storage.enabled": "TRUE"}, "s3://b/objects"),
        ({**OF_OBJECTS, "write.object-storage.enabled": "true", "write.data.path": "s3://b/named"}, "s3://b/named"),
        ({"write.object-storage.enabled": "true"}, "s3://b/t/data"),
    ],
)
def test_where_engines_put_data_files(properties: Mapping[str, str], folder: str) -> None:
    table = new_table_metadata(
        Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://b/t", properties=dict(properties)
    )

    assert data_folder(table) == folder


OURS, THEIRS = "0af1" * 8, "77b2" * 8


@pytest.mark.parametrize("name", ["{}-m0.avro", "{}-m12.avro", "snap-42-0-{}.avro"])
def test_the_manifests_of_a_commit_name_its_writer(name: str) -> None:
    first, second = commit_id(OURS), commit_id(OURS)

    assert first != second
    assert is_of_commit(name.format(first), [THEIRS, OURS])
    assert is_of_commit(name.format(second), [OURS])
    assert not is_of_commit(name.format(first), [THEIRS])
    assert not is_of_commit(name.format(first).removesuffix(".avro"), [OURS])
