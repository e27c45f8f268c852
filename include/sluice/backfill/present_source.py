"""Whether the source of a rejected record is still the one that has its name: a topic or a table that was deleted and
created again has other records at the same positions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog

from sluice.backfill.replayable_rows import OpenRow
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation, find_numbered_generation
from sluice.publication.resolved_rejections import SHARD_PLACE, TOPIC_PLACE, RejectedAt
from sluice.settings import Settings
from sluice.sources.source_identities import (
    NONE_KNOWN,
    Identities,
    another_before,
    has_kinesis,
    has_topics,
    ids_of_inputs,
    input_identities,
    is_known_as,
    topics_named,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentSource:
    """The inputs of a stream as they are there now.

    seen: the ids of what it reads. known: those of generations that were asked for.
    """

    ledger: Ledger
    stream: str
    seen: Identities
    known: dict[int, Identities] = field(default_factory=dict)

    @classmethod
    def observed(
        cls, ledger: Ledger, declaration: StreamDeclaration, settings: Settings, catalog: Catalog
    ) -> PresentSource:
        """Read the ids.

        Raises
        ------
        SettingsError: when the deployment does not have a connection.
        LakehouseError: when a source or the catalog does not answer, or refuses.
        """
        seen: dict[str, str] = {}
        for declared in declaration.inputs.values():
            seen |= input_identities(declared, settings, catalog)
        return cls(ledger=ledger, stream=declaration.stream, seen=seen)

    @classmethod
    def of_newest(cls, ledger: Ledger, stream: str) -> PresentSource:
        """The inputs as the newest generation of a stream knows them; nothing else is asked."""
        newest = find_generation(ledger, stream)
        return cls(
            ledger=ledger, stream=stream, seen=ids_of_inputs(NONE_KNOWN if newest is None else newest.identities)
        )

    def has(self, row: OpenRow | RejectedAt) -> bool:
        """Whether the record of a row was read from what has its name now. It was not while an id is unknown.

        A position that says neither a topic nor a shard may be of any input, so none may be another one.
        """
        names, then = self._names(row), self._known(row.generation)
        if names is None:
            return False
        return all(is_known_as(name, then=then, seen=self.seen, batch=row.batch) for name in names)

    def had_another(self, row: OpenRow | RejectedAt) -> bool | None:
        """Whether the record of a row is known to be of what had its name before; none where it may be of either,
        because its position does not say of which input it is."""
        surely, perhaps = self.another_before(row)
        return row.batch < surely or (None if row.batch < perhaps else False)

    def another_before(self, row: OpenRow | RejectedAt) -> tuple[int, int]:
        """The batches before which the record of a row is surely, and perhaps, of what had its name before: of any row
        of this generation whose position is of the same topic, shard, or neither."""
        names, then = self._names(row), self._known(row.generation)
        before = [another_before(name, then=then, seen=self.seen) for name in names or ()]
        return min(before, default=0), max(before, default=0)

    def _names(self, row: OpenRow | RejectedAt) -> Collection[str] | None:
        """Under which names the ids are kept of what the record may be of; none when that is not there any more.
        Sequence numbers of Kinesis do not come again, so that no id says more than they do."""
        if row.fields.keys() == SHARD_PLACE and has_kinesis(self.seen):
            return ()
        if row.fields.keys() != TOPIC_PLACE or not has_topics(self.seen):
            return self.seen  # a table may have columns of these names
        return topics_named(str(row.fields["topic"]), self.seen) or None

    def _known(self, generation: int) -> Identities:
        if generation not in self.known:
            found = find_numbered_generation(self.ledger, self.stream, generation)
            self.known[generation] = NONE_KNOWN if found is None else found.identities
        return self.known[generation]
