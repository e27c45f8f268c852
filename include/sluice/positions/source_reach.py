"""Looks whether the sources of a stream still have what it reads again from a position on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.declarations.source_declarations import IcebergSource, KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import LakehouseError, SettingsError
from sluice.operations import Refusal, RefusalReason
from sluice.settings import KafkaConnection, Settings
from sluice.sources.iceberg_positions import stream_offset_of
from sluice.sources.input_gap import find_gap
from sluice.tables.declared_tables import require_table


def refuse_gone_input(
    catalog: Catalog, declaration: StreamDeclaration, settings: Settings, starts: str
) -> Iterator[Refusal]:
    """A refusal for each input that does not have any more, or may not have, what comes behind an offset.

    Parameters
    ----------
    starts: by source, from `canonical_offsets`.
    """
    offsets = json.loads(starts)
    for name, declared in declaration.inputs.items():
        if not declared.is_stream or name not in offsets:
            continue
        try:
            problem = _problem(catalog, declared.declared_source.source, offsets[name], settings)
        except (LakehouseError, SettingsError) as error:
            problem = str(error)
        if problem:
            yield Refusal(
                reason=RefusalReason.SOURCE_GONE,
                sentence=f"A batch of {declaration.stream} has to be read again from its input {name}: {problem}.",
                next_step=f"`sluice stream reset {declaration.stream} --dry-run` shows what can still be read.",
            )


def _problem(catalog: Catalog, source: object, offset: Any, settings: Settings) -> str:
    if offset is None:
        return ""
    if isinstance(source, KafkaSource):
        return _gone_records(source, offset, settings)
    if isinstance(source, IcebergSource):
        position = stream_offset_of(json.dumps(offset))
        table = require_table(catalog, source.table)
        gap = find_gap(table, name=source.table, position=position.snapshot_id) if position is not None else None
        return "" if gap is None else str(gap)
    return ""  # what its source keeps in the checkpoint says what was read


def _gone_records(source: KafkaSource, offset: dict[str, dict[str, int]], settings: Settings) -> str:
    from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

    topics = KafkaTopics(settings.connection(source.connection, KafkaConnection))
    firsts = topics.firsts_of({topic: [int(one) for one in parts] for topic, parts in offset.items()})
    gone = sum(
        max(0, firsts.get(topic, {}).get(int(partition), 0) - next_offset)
        for topic, parts in offset.items()
        for partition, next_offset in parts.items()
    )
    return f"{gone:,} records behind it were removed from the topic" if gone else ""
