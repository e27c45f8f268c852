"""Looks at the inputs of a run before each batch: they must be the same things, with the fields that the plan reads.

A topic that appears while a run reads all whose names match has an id from its first look on. It is kept then: at the
next start, what has its name may be another one already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from sluice.declarations.source_declarations import IcebergSource, KafkaSource
from sluice.errors import LedgerError
from sluice.settings import KafkaConnection, Settings
from sluice.sources.seen_schemas import SchemaSightings
from sluice.sources.source_identities import (
    PLANS_AGAIN,
    Identities,
    SourceFields,
    answer_to_fields,
    changed_fields,
    fields_of,
    find_replaced,
    input_table_name,
    topic_identities,
)
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.declarations.stream_declaration import StreamDeclaration
    from sluice.sources.kafka_topics import KafkaTopics

_log = logging.getLogger(__name__)

Rows = TypeVar("Rows")


class InputChangedError(Exception):
    """An input is not what the plan of a run was made with. The run delivers no further batch and plans again."""


class InputWatch:
    """Compares the inputs of one run with what it was planned with.

    Parameters
    ----------
    declaration: the stream. settings: the connections and the catalog of the deployment.
    identities: the ids that the run has begun with, and those of what was not there then.
    keep: keeps the ids of topics that have none yet. A ledger that is away stops no batch: it is asked with the next.
    fields: of each Iceberg table that the plan reads as it is, by name.
    sightings: keeps the schemas that are seen.
    """

    def __init__(
        self,
        declaration: StreamDeclaration,
        settings: Settings,
        *,
        identities: Identities,
        keep: Callable[[Identities], object],
        fields: Mapping[str, SourceFields],
        sightings: SchemaSightings,
    ) -> None:
        self._settings = settings
        self._identities = dict(identities)
        self._keep = keep
        self._unkept: dict[str, str] = {}
        self._fields = fields
        self._sightings = sightings
        streamed = [one.declared_source.source for one in declaration.inputs.values() if one.is_stream]
        self._topics = [source for source in streamed if isinstance(source, KafkaSource)]
        tables = [source.table for source in streamed if isinstance(source, IcebergSource)]
        self._tables = tuple(dict.fromkeys([*tables, *fields]))
        self._clients: dict[str, KafkaTopics] = {}

    def ahead_of(self, deliver: Callable[[Rows, int], None]) -> Callable[[Rows, int], None]:
        """Wrap the delivery of batches. The wrapped one raises what `look` raises, and delivers nothing then; without
        such an input, `deliver` itself is returned."""
        if not self._topics and not self._tables:
            return deliver

        def look_and_deliver(rows: Rows, batch: int) -> None:
            self.look()
            deliver(rows, batch)

        return look_and_deliver

    def look(self) -> None:
        """Compare the inputs as they are now.

        Raises
        ------
        InputChangedError: when an input is another one, or its fields are not those of the plan: the run plans again.
        LakehouseError: when a source does not answer.
        """
        found = [*self._replaced_topics(), *(phrase for name in self._tables for phrase in self._changes_of(name))]
        if found:
            raise InputChangedError(f"planned again, because its inputs changed: {'; '.join(found)}")

    def close(self) -> None:
        """Close the connections to Kafka: a run may be kept by what it has planned longer than it works."""
        self._clients.clear()

    def _replaced_topics(self) -> list[str]:
        of_inputs = [topic_identities(source, self._client(source)) for source in self._topics]
        seen = {name: identity for of_input in of_inputs for name, identity in of_input.items()}
        self._take_in({name: identity for name, identity in seen.items() if name not in self._identities})
        return [str(one) for one in find_replaced(self._identities, seen)]

    def _take_in(self, new: Identities) -> None:
        self._identities.update(new)
        self._unkept.update(new)
        if not self._unkept:
            return
        try:
            self._keep(dict(self._unkept))
        except LedgerError as error:
            _log.warning("the ids of %s could not be kept: %s", ", ".join(sorted(self._unkept)), error)
        else:
            self._unkept.clear()

    def _changes_of(self, name: str) -> list[str]:
        table = require_table(self._catalog, name)
        seen = {input_table_name(name): str(table.metadata.table_uuid)}
        replaced = [str(one) for one in find_replaced(self._identities, seen)]
        now = fields_of(table.schema())
        planned = self._fields.get(name, {})
        self._sightings.see_table(name, now, answer=PLANS_AGAIN if replaced else answer_to_fields(planned, now))
        changed = changed_fields(planned, now)
        return [*replaced, *(f"{name}: {one}" for one in changed)]

    def _client(self, source: KafkaSource) -> KafkaTopics:
        from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

        if source.connection not in self._clients:
            self._clients[source.connection] = KafkaTopics(
                self._settings.connection(source.connection, KafkaConnection)
            )
        return self._clients[source.connection]

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._settings)
