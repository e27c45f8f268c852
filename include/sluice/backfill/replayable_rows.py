"""Which rejected records of a stream can become rows of its target once, and what blocks it: also whether the source of
a record is still the one that has its name. A topic or a table that was deleted and created again has other records at
the same positions.

A replay publishes a record beside the live stream. It is exact where a record becomes rows by itself: of a stream that
appends to one table, and keeps no state. Where state decides, or rows are replaced, a backfill or a refresh is the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, IsNull

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import IcebergSource, KafkaSource, KinesisSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import UsageError
from sluice.ledger.backfill_attempts import BackfillAttemptObservation, BackfillState
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation, find_numbered_generation
from sluice.operations import Refusal, RefusalReason
from sluice.publication.resolved_rejections import SHARD_PLACE, TOPIC_PLACE, RejectedAt, known_as, place_of
from sluice.publication.staged_batch import StagedOutput
from sluice.record_values.rejection import RejectionKind
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
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import require_table

MOST_RECORDS = 50_000
"""How many records one replay takes, the oldest first: they are listed in the memory of the driver."""

_BACKFILL_WAY = "Backfill the interval of these records, or refresh the table (`sluice stream refresh`)."


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRow:
    """A rejected row that is not resolved. place: how it is known; none when nothing says where it stood. resolved_by:
    the replay that was about to publish its record; unset without any."""

    generation: int
    batch: int
    kind: str | None
    position: str | None
    payload: str | None
    refused_at: datetime
    place: str | None
    resolved_by: str | None = None

    @property
    def at(self) -> RejectedAt | None:
        """What it is known by; none without a place."""
        fields = ("generation", "batch", "position", "payload")
        return known_as({name: getattr(self, name) for name in fields})

    @property
    def rejected_by(self) -> str:
        """The batch that rejected its record."""
        return f"{self.generation}:{self.batch}"

    @property
    def fields(self) -> Mapping[str, Any]:
        """Its position as an object; empty when it is none."""
        return self.at.fields if self.at is not None else {}


def read_open_rows(catalog: Catalog, declaration: StreamDeclaration) -> list[OpenRow]:
    """The open rows of a stream's quarantine, the oldest first.

    Raises
    ------
    UsageError: when the stream has no quarantine.
    LakehouseError: when the quarantine cannot be read.
    """
    if not declaration.quarantine:
        raise UsageError(f"{declaration.stream} has no quarantine: its declaration has no `quarantine: true`.")
    table = require_table(catalog, declaration.quarantine_table)
    names = ("generation", "batch", "kind", "position", "payload", "refused_at", "resolved_by")
    with catalog_refusals(f"read the rows of {declaration.quarantine_table}"):
        scan = table.scan(And(EqualTo(term="stream", value=declaration.stream), IsNull(term="resolved_at")), names)
        found = scan.to_arrow().to_pylist()
    return sorted((OpenRow(**row, place=place_of(row)) for row in found), key=lambda row: row.refused_at)


def shown_position(row: OpenRow, declaration: StreamDeclaration) -> str | None:
    """The position of a row for a terminal: one that consists of columns is hidden where a stream masks some."""
    if declaration.masked_columns and row.fields.keys() not in (TOPIC_PLACE, SHARD_PLACE):
        return "hidden, because columns are masked" if row.position is not None else None
    return row.position


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which open rows are meant. kinds, positions, batches: empty for all; a batch that rejected rows is
    `<generation>:<batch>`. until: rejected up to then; unset for all."""

    kinds: frozenset[str] = frozenset()
    positions: frozenset[str] = frozenset()
    batches: frozenset[str] = frozenset()
    until: datetime | None = None

    def of(self, rows: Iterable[OpenRow]) -> list[OpenRow]:
        """The rows that are meant."""
        return [
            row
            for row in rows
            if (not self.kinds or row.kind in self.kinds)
            and (not self.positions or row.position in self.positions)
            and (not self.batches or row.rejected_by in self.batches)
            and (self.until is None or row.refused_at <= self.until)
        ]


def of_several_sources(rows: Iterable[OpenRow], is_present: Callable[[OpenRow], bool]) -> list[list[OpenRow]]:
    """The rows of each place at which records of a source that was created again may be rejected besides others."""
    found: dict[str, list[OpenRow]] = {}
    for row in rows:
        if row.place is not None:
            found.setdefault(row.place, []).append(row)
    return [same for same in found.values() if len(same) > 1 and not all(map(is_present, same))]


def arriving_input(declaration: StreamDeclaration) -> tuple[str, InputDeclaration] | None:
    """The one input through which rows arrive; none when there are several."""
    found = [(name, one) for name, one in declaration.inputs.items() if one.is_stream]
    return found[0] if len(found) == 1 else None


def replayed_output(declaration: StreamDeclaration) -> StagedOutput:
    """The output into which records are replayed. The stream has one (`refusals_of`)."""
    name, declared = next(iter(declaration.outputs.items()))
    target = declared.iceberg.table if declared.iceberg is not None else ""
    return StagedOutput(stream=declaration.stream, output=name, target=target)


def refusals_of(stream: LoadedStream, *, has_open_backfill: bool, has_open_refresh: bool) -> Iterator[Refusal]:
    """Why nothing of a stream can be replayed, as its declaration and the ledger say it.

    Parameters
    ----------
    has_open_backfill: whether an attempt did not report its end: it may have published records without marking them.
    """
    declaration = stream.declaration
    outputs = list(declaration.outputs.values())
    if len(outputs) != 1 or outputs[0].iceberg is None or outputs[0].iceberg.mode != "append":
        sentence = f"{stream.name} does more than append to one table, so a record may have given rows before."
        yield Refusal(reason=RefusalReason.NOT_YET, sentence=sentence, next_step=_BACKFILL_WAY)
    found = arriving_input(declaration)
    if found is None or not isinstance(found[1].declared_source.source, IcebergSource | KafkaSource | KinesisSource):
        sentence = f"The records of {stream.name} have no place of their own in one topic, Kinesis stream or table."
        yield Refusal(reason=RefusalReason.NOT_YET, sentence=sentence, next_step=_BACKFILL_WAY)
    if has_open_backfill:
        sentence = f"A backfill of {stream.name} has not ended, and may have published these records."
        step = "Wait for it (`sluice work list`), or repeat the backfill of the interval if it was interrupted."
        yield Refusal(reason=RefusalReason.NOT_AT_REST, sentence=sentence, next_step=step)
    if has_open_refresh:
        sentence = f"A refresh of {stream.name} has not ended: it takes these records from the source again."
        yield Refusal(reason=RefusalReason.OTHER_REFRESH, sentence=sentence, next_step="Wait for it, or abandon it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayableRows:
    """The open rows of a selection. rows: those that can be replayed, by place. left: how many cannot, by reason."""

    rows: Mapping[str, tuple[OpenRow, ...]]
    left: Mapping[str, int]

    def at(self, places: Collection[str]) -> frozenset[RejectedAt]:
        """What the rows of some places are known by."""
        return frozenset(row.at for place in places for row in self.rows[place] if row.at is not None)


def may_have_published(attempts: Iterable[BackfillAttemptObservation]) -> Callable[[OpenRow], bool]:
    """Whether a backfill may have published the record of a row: one that has failed may have published before, and one
    marks only the rows of which it knows that they are in the target.

    It has read what the batches up to the one of its plan had read. Of attempts that an earlier version recorded only
    the time of their end is known: what they read was rejected before.
    """
    read = [one for one in attempts if one.end_offsets is not None and one.state != BackfillState.UNCHANGED]
    upto = max(
        ((one.generation, one.batch) for one in read if one.generation and one.batch is not None), default=(0, 0)
    )
    ended = (one.ended_at for one in read if not one.generation)
    until = max((time for time in ended if time is not None), default=None)
    return lambda row: (row.generation, row.batch) <= upto or (until is not None and row.refused_at <= until)


def replayable(
    rows: Collection[OpenRow],
    declared: InputDeclaration,
    *,
    generations: Collection[int],
    is_present: Callable[[OpenRow], bool],
    may_be_published: Callable[[OpenRow], bool],
    is_unknown: Callable[[str], bool],
) -> ReplayableRows:
    """Which rows can be replayed.

    Parameters
    ----------
    is_present: whether the source of a row is the one that has its name now: one that was created again has other
        records at the same positions.
    generations: those whose records the open generation has not read again.
    may_be_published: as `may_have_published` returns it.
    is_unknown: whether the replay of a key may have published rows without a trace: its snapshots are expired.
    """
    found: dict[str, list[OpenRow]] = {}
    left: Counter[str] = Counter()
    for row in rows:
        if may_be_published(row):
            left["a backfill has read and may have published its record: backfill its interval again"] += 1
        elif row.resolved_by is not None and is_unknown(row.resolved_by):
            left["a replay whose snapshots are expired may have published its record: backfill its interval"] += 1
        elif (why := _left_because(row, declared, generations)) is not None:
            left[why] += 1
        elif not is_present(row) and isinstance(declared.declared_source.source, IcebergSource):
            left["its table was created again since, and holds other rows"] += 1
        elif row.place is not None:
            found.setdefault(row.place, []).append(row)
    for same in of_several_sources((row for of_place in found.values() for row in of_place), is_present):
        left["its source was created again since, and other records are rejected at its position"] += len(same)
        del found[str(same[0].place)]
    taken = list(found.items())[:MOST_RECORDS]
    if len(taken) < len(found):
        left[f"more than {MOST_RECORDS:,} records: the next replay takes them"] += len(found) - len(taken)
    return ReplayableRows(rows={place: tuple(of_place) for place, of_place in taken}, left=dict(left))


def _left_because(row: OpenRow, declared: InputDeclaration, generations: Collection[int]) -> str | None:
    source = declared.declared_source.source
    if row.generation not in generations:
        return "a later generation reads its record again, or has not begun"
    if not row.fields:
        return "its position does not say where its record stood"
    if isinstance(source, KafkaSource) and not _is_of_topic(row.fields):
        return "its position is not a topic, a partition and an offset"
    if isinstance(source, KinesisSource):
        if set(row.fields) != SHARD_PLACE:
            return "its position is not a stream, a shard and a sequence number"
        if stored_value(row, declared) is None:
            return "the quarantine does not hold its value as it came"
    return None


def _is_of_topic(fields: Mapping[str, Any]) -> bool:
    return set(fields) == TOPIC_PLACE and all(type(fields[name]) is int for name in ("partition", "offset"))


def stored_value(row: OpenRow, declared: InputDeclaration) -> bytes | None:
    """The value of a record as a decoder has left it in the quarantine; none where it is not whole there.

    A transformation puts what it likes into the payload. Text in JSON behind the id of a schema stands there without.
    """
    value = declared.declared_source.value
    if value is None or row.kind is None or row.payload is None:
        return None
    if value.format == "json" and value.registry is not None:
        return None
    if value.format == "json" and row.kind != RejectionKind.NOT_TEXT:
        return row.payload.encode()
    is_hex = row.payload.startswith("0x")
    return bytes.fromhex(row.payload.removeprefix("0x")) if is_hex else None


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
