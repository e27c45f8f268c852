"""Whether the source of a rejected record is still the one that has its name: a topic or a table that was deleted and
created again has other records at the same positions."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog

from sluice.backfill.replayable_rows import OpenRow
from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.source_declarations import IcebergSource, KafkaSource
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_numbered_generation
from sluice.settings import Settings
from sluice.sources.source_identities import (
    NONE_KNOWN,
    Identities,
    input_identities,
    input_table_name,
    is_known_as,
    topic_name,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentSource:
    """The source of one input as it is there now. seen: its ids. known: those of generations that were asked for."""

    ledger: Ledger
    stream: str
    declared: InputDeclaration
    seen: Identities
    known: dict[int, Identities] = field(default_factory=dict)

    @classmethod
    def observed(
        cls, ledger: Ledger, stream: str, declared: InputDeclaration, settings: Settings, catalog: Catalog
    ) -> PresentSource:
        """Read the ids.

        Raises
        ------
        SettingsError: when the deployment does not have the connection.
        LakehouseError: when the source or the catalog does not answer, or refuses.
        """
        seen = input_identities(declared, settings, catalog)
        return cls(ledger=ledger, stream=stream, declared=declared, seen=seen)

    def has(self, row: OpenRow) -> bool:
        """Whether the record of a row was read from it. Records of a Kinesis stream are not read again."""
        match self.declared.declared_source.source:
            case KafkaSource() as source:
                name = topic_name(source.connection, str(row.fields.get("topic")))
            case IcebergSource() as source:
                name = input_table_name(source.table)
            case _:
                return True
        return is_known_as(name, then=self._known(row.generation), seen=self.seen, batch=row.batch)

    def _known(self, generation: int) -> Identities:
        if generation not in self.known:
            found = find_numbered_generation(self.ledger, self.stream, generation)
            self.known[generation] = NONE_KNOWN if found is None else found.identities
        return self.known[generation]
