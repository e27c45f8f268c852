"""Looks at the sources of a stream for what its batches pass over, and adds it to what is known of each batch.

A stream says that it wants this: `on_data_loss: count` of a Kafka input, `skip` of an Iceberg input. All others stop
instead, and nothing is looked at for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from sluice.declarations.sources import IcebergSource, KafkaSource
from sluice.errors import LakehouseError, SettingsError
from sluice.ledger.records.batch import BatchObservation
from sluice.settings import KafkaConnection, Settings
from sluice.sources.kafka_topics import open_admin, partitions_of, read_firsts
from sluice.sources.skipped_input import lost_offsets, skipped_rows

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.declarations.streams import StreamDeclaration

Rows = TypeVar("Rows")
Firsts: TypeAlias = Mapping[str, Mapping[int, int]]

_log = logging.getLogger(__name__)


class PassedOver:
    """What the batches of one run pass over.

    Parameters
    ----------
    declaration: the stream. settings: where its sources are.
    """

    def __init__(self, declaration: StreamDeclaration, settings: Settings) -> None:
        self._settings = settings
        sources = {name: given.declared_source.source for name, given in declaration.inputs.items() if given.is_stream}
        self._topics = {
            name: source
            for name, source in sources.items()
            if isinstance(source, KafkaSource) and source.on_data_loss == "count"
        }
        self._tables = {
            name: source
            for name, source in sources.items()
            if isinstance(source, IcebergSource) and "skip" in (source.on_overwrite, source.on_delete)
        }
        self._firsts: dict[int, dict[str, Firsts]] = {}

    def ahead_of(self, deliver: Callable[[Rows, int], None]) -> Callable[[Rows, int], None]:
        """The same delivery of batches; ahead of it, the beginning of every topic is looked at.

        It raises a LakehouseError when Kafka does not answer: a loss that cannot be counted must not pass.
        """
        if not self._topics:
            return deliver

        def look_and_deliver(rows: Rows, batch: int) -> None:
            self._firsts[batch] = {name: self._look_at(source) for name, source in self._topics.items()}
            deliver(rows, batch)

        return look_and_deliver

    def completing(self, hand_over: Callable[[BatchObservation], None]) -> Callable[[BatchObservation], None]:
        """Hand batches over with what they passed over; as they are, when there is nothing to look at."""
        if not self._topics and not self._tables:
            return hand_over

        def complete_and_hand_over(batch: BatchObservation) -> None:
            hand_over(self._completed(batch))

        return complete_and_hand_over

    def _completed(self, batch: BatchObservation) -> BatchObservation:
        firsts = self._firsts.pop(batch.key.batch, {})
        passed_over = {
            name: lost_offsets(batch.start_offsets.get(name), batch.end_offsets.get(name), firsts=firsts.get(name, {}))
            for name in self._topics
        } | {name: self._skipped(source, batch, name) for name, source in self._tables.items()}
        found = {name: places for name, places in passed_over.items() if places}
        for name, places in found.items():
            _log.warning("batch %d: %s: %d rows were passed over", batch.key.batch, name, sum(places.values()))
        return replace(batch, passed_over=found)

    def _look_at(self, source: KafkaSource) -> Firsts:
        from confluent_kafka import KafkaException

        connection = self._settings.connection(source.connection, KafkaConnection)
        admin = open_admin(connection)
        try:
            return read_firsts(admin, partitions_of(admin, source))
        except KafkaException as error:
            raise LakehouseError(
                f"Kafka at {connection.bootstrap_servers} does not tell where its topics begin, so a loss could not be "
                f"counted: {error.args[0].str()}."
            ) from error

    def _skipped(self, source: IcebergSource, batch: BatchObservation, name: str) -> Mapping[str, int]:
        from sluice.sources.table_history import history_of
        from sluice.tables.declared_tables import load_table

        try:
            table = load_table(self._catalog, source.table)
        except (LakehouseError, SettingsError) as error:
            _log.error("batch %d: what it left out of %s is not known: %s", batch.key.batch, source.table, error)
            return {}
        start, end = batch.start_offsets.get(name), batch.end_offsets.get(name)
        history = tuple(history_of(table)) if table is not None else ()
        return skipped_rows(start, end, history=history, begins_at=source.from_timestamp)

    @cached_property
    def _catalog(self) -> Catalog:
        from sluice.tables.catalog import open_catalog

        return open_catalog(self._settings)
