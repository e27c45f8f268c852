"""Whether the open generation of a stream has read as far as the one before it.

After a reset a stream reads again what it had read. Until it is there, its mark says less than its table holds: an
interval that is computed from what the mark says would lose the rows that only the former generation has read.

Files are not compared: each generation counts its own. The brake for fewer rows remains for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import IcebergSource, KafkaSource
from sluice.tables.declared_tables import require_table


def inputs_behind(
    catalog: Catalog, stream: LoadedStream, *, before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[str]:
    """The inputs that were read less far, by their names.

    Parameters
    ----------
    before, now: the end offsets of the newest batches of the former and of the open generation, by input.

    Raises
    ------
    LakehouseError: when a table cannot be loaded.
    """
    for name, declared in stream.declaration.inputs.items():
        source, earlier = declared.declared_source.source, before.get(name)
        if not declared.is_stream or not isinstance(earlier, Mapping):
            continue
        match source:
            case IcebergSource():
                table = require_table(catalog, source.table)
                if is_table_behind(table, before=earlier, now=now.get(name)):
                    yield name
            case KafkaSource() if are_topics_behind(before=earlier, now=now.get(name)):
                yield name


def is_table_behind(table: Table, *, before: Mapping[str, Any], now: object) -> bool:
    """Whether an offset of a table lies before another one, in the history of main. An earlier offset whose snapshot is
    expired lies before what can be read at all."""
    earlier = table.snapshot_by_id(int(before["snapshot_id"]))
    if earlier is None:
        return False
    if not isinstance(now, Mapping):
        return True
    if int(now["snapshot_id"]) == earlier.snapshot_id:
        return _is_less_of(earlier, before=before, now=now)
    place = table.snapshot_by_id(int(now["snapshot_id"]))
    while place is not None and place.snapshot_id != earlier.snapshot_id:
        parent = place.parent_snapshot_id
        place = table.snapshot_by_id(parent) if parent is not None else None
    return place is None


def _is_less_of(snapshot: Snapshot, *, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether less of one snapshot was read. A scan counts all files of the table, and other offsets the new ones: what
    a scan has read of these is known when it is complete."""
    scans, did_scan = bool(now.get("scan_all_files")), bool(before.get("scan_all_files"))
    read, was_read = int(now.get("position", 0)), int(before.get("position", 0))
    if scans == did_scan:
        return read < was_read
    files = snapshot.summary.additional_properties.get("total-data-files") if snapshot.summary is not None else None
    return scans and (files is None or read < int(files))


def are_topics_behind(*, before: Mapping[str, Any], now: object) -> bool:
    """Whether a partition of a topic was read less far."""
    topics = now if isinstance(now, Mapping) else {}
    return any(
        int(topics.get(topic, {}).get(partition, 0)) < int(end)
        for topic, partitions in before.items()
        for partition, end in partitions.items()
    )
