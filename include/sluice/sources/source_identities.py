"""The identities and fields of what a stream reads and writes: a name alone does not say that it is still the same.

A topic that was deleted and created again has its old name and other records under the known offsets; a table that was
dropped and created again has lost the rows of every batch that the ledger has recorded. So each generation keeps the
ids of its topics, tables and Kinesis streams, and they are compared at every start, before each batch, and whenever
somebody asks how far a stream is behind.

Spark plans a query once and reads new files into the types of that plan: a column that became optional gives 0 for
null, one that was widened gives null for large values, and one that was dropped and added again gives null in every
row. So the fields that a plan was made with are compared with those of the table before each batch.

What it does not do: Delta's source compares the id of its table by itself. Folders and tables of databases have no id.
A topic that is recreated while a batch reads it is noticed with the next batch. Batches that are not handed over to
Sluice (`delivery: direct`, triggers that hand records on) are not looked at: there the starts and the lag compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.types import ListType, MapType, NestedField, StructType

from sluice.declarations.source_declarations import IcebergSource, KafkaSource, KinesisSource
from sluice.ledger.generations import OUTPUT_TABLE
from sluice.settings import KafkaConnection, KinesisConnection, Settings
from sluice.tables.declared_tables import load_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.declarations.input_declaration import InputDeclaration
    from sluice.declarations.stream_declaration import StreamDeclaration
    from sluice.sources.kafka_topics import KafkaTopics

Identities = Mapping[str, str]
"""The id of each topic, table and Kinesis stream, by its kind and name. The ledger keeps them in this form."""

NONE_KNOWN: Identities = MappingProxyType({})

_TOPIC, _INPUT, _KINESIS = "topic ", "input table ", "Kinesis stream "
_SINCE = " since batch"

EVERY_BATCH = 2**63 - 1
"""A number that no batch has, and a long of Spark holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """Something that has its name and another id. name: its kind and name. known, seen: the ids."""

    name: str
    known: str
    seen: str

    @property
    def is_output(self) -> bool:
        """Whether the stream writes it."""
        return self.name.startswith(OUTPUT_TABLE)

    @property
    def table(self) -> str:
        """The name of the table that the stream writes."""
        return self.name.removeprefix(OUTPUT_TABLE)

    @property
    def is_kinesis(self) -> bool:
        """Whether it is a Kinesis stream."""
        return self.name.startswith(_KINESIS)

    def is_topic(self, connection: str, topic: str) -> bool:
        """Whether it is this topic."""
        return self.name == topic_name(connection, topic)

    def is_input_table(self, table: str) -> bool:
        """Whether it is this table, as an input."""
        return self.name == input_table_name(table)

    def __str__(self) -> str:
        return f"{self.name} was deleted and created again (its id was {self.known} and is {self.seen})"


def topic_name(connection: str, topic: str) -> str:
    """The name under which the id of a topic is kept."""
    return f"{_TOPIC}{topic} of {connection}"


def topics_named(topic: str, known: Identities) -> frozenset[str]:
    """The names under which the ids of a topic are kept, one for each connection that has it."""
    return frozenset(name for name in known if name.startswith(f"{_TOPIC}{topic} of ") and not name.endswith(_SINCE))


def has_topics(known: Identities) -> bool:
    """Whether ids of topics are among those of a stream."""
    return any(name.startswith(_TOPIC) for name in known)


def has_kinesis(known: Identities) -> bool:
    """Whether ids of Kinesis streams are among those of a stream."""
    return any(name.startswith(_KINESIS) for name in known)


def ids_of_inputs(known: Identities) -> Identities:
    """The ids of what a generation reads, without those of what it writes."""
    return {name: one for name, one in known.items() if not name.startswith(OUTPUT_TABLE) and not name.endswith(_SINCE)}


def since_batch(name: str) -> str:
    """The name under which a generation keeps the first batch of what it follows under its new id."""
    return f"{name}{_SINCE}"


def input_table_name(table: str) -> str:
    """The name under which the id of a table is kept that a stream reads from position to position."""
    return f"{_INPUT}{table}"


def output_table_name(table: str) -> str:
    """The name under which the id of a table is kept that a stream writes."""
    return f"{OUTPUT_TABLE}{table}"


def kinesis_name(source: KinesisSource) -> str:
    """The name under which the id of a Kinesis stream is kept."""
    return f"{_KINESIS}{source.stream} of {source.connection}"


def find_replaced(known: Identities, seen: Identities) -> tuple[Replaced, ...]:
    """What has another id than is known, by name. What is not there now, or was not there before, is not among it."""
    return tuple(
        Replaced(name=name, known=known[name], seen=seen[name])
        for name in sorted(known.keys() & seen.keys())
        if known[name] != seen[name]
    )


def observe_identities(declaration: StreamDeclaration, settings: Settings, catalog: Catalog) -> Identities:
    """Read the ids of what a stream reads from position to position, and of the tables that it writes.

    Raises
    ------
    SettingsError: when the deployment does not have a connection.
    LakehouseError: when a source or the catalog does not answer, or refuses.
    """
    return dict([*_of_inputs(declaration, settings, catalog), *_of_outputs(declaration, catalog)])


def input_identities(declared: InputDeclaration, settings: Settings, catalog: Catalog) -> Identities:
    """Read the ids of one input; empty when it has none, or is not there.

    Raises
    ------
    SettingsError: when the deployment does not have a connection.
    LakehouseError: when the source or the catalog does not answer, or refuses.
    """
    return dict(_of_input(declared, settings, catalog))


def is_known_as(name: str, *, then: Identities, seen: Identities, batch: int) -> bool:
    """Whether what a batch has read under a name is what has this name now. It is not while an id is unknown.

    Parameters
    ----------
    then: of the generation of the batch. seen: what there is now.
    """
    is_later = batch >= int(then.get(since_batch(name), 0))
    return is_later and name in seen and then.get(name) == seen[name]


def another_before(name: str, *, then: Identities, seen: Identities) -> int:
    """The batch of a generation before which what it has read under a name is known to be another than what has this
    name now; `EVERY_BATCH` where each has.

    Parameters
    ----------
    then, seen: as `is_known_as` takes them.
    """
    is_replaced = name in then and name in seen and then[name] != seen[name]
    return EVERY_BATCH if is_replaced else int(then.get(since_batch(name), 0))


def replaced_inputs(
    declaration: StreamDeclaration, known: Identities, settings: Settings, catalog: Catalog
) -> Mapping[str, str]:
    """A sentence without its stop for each input that is not any more what the stream has read, by its name.

    Raises
    ------
    SettingsError: when the deployment does not have a connection.
    LakehouseError: when a source or the catalog does not answer, or refuses.
    """
    found = {
        name: "; ".join(map(str, find_replaced(known, input_identities(declared, settings, catalog))))
        for name, declared in declaration.inputs.items()
    }
    return {name: sentence for name, sentence in found.items() if sentence}


def topic_identities(source: KafkaSource, topics: KafkaTopics) -> Identities:
    """Read the ids of the topics of an input; those that do not exist are left out.

    Raises
    ------
    LakehouseError: when Kafka does not answer, or refuses.
    """
    ids = topics.ids_of(topics.partitions_of(source))
    return {topic_name(source.connection, topic): found for topic, found in ids.items()}


def _of_inputs(declaration: StreamDeclaration, settings: Settings, catalog: Catalog) -> Iterator[tuple[str, str]]:
    for declared in declaration.inputs.values():
        yield from _of_input(declared, settings, catalog)


def _of_input(declared: InputDeclaration, settings: Settings, catalog: Catalog) -> Iterator[tuple[str, str]]:
    if not declared.is_stream:
        return
    match declared.declared_source.source:
        case KafkaSource() as source:
            from sluice.sources.kafka_topics import KafkaTopics  # a native library, which others do not load

            topics = KafkaTopics(settings.connection(source.connection, KafkaConnection))
            yield from topic_identities(source, topics).items()
        case IcebergSource() as source:
            if (table := load_table(catalog, source.table)) is not None:
                yield input_table_name(source.table), str(table.metadata.table_uuid)
        case KinesisSource() as source:
            from sluice.sources.kinesis_shards import kinesis_identity  # slow to import

            connection = settings.connection(source.connection, KinesisConnection)
            yield kinesis_name(source), kinesis_identity(source, connection)


def _of_outputs(declaration: StreamDeclaration, catalog: Catalog) -> Iterator[tuple[str, str]]:
    written = (*declaration.tables_written, *((declaration.quarantine_table,) if declaration.quarantine else ()))
    for name in dict.fromkeys(written):
        if (table := load_table(catalog, name)) is not None:
            yield output_table_name(name), str(table.metadata.table_uuid)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceField:
    """A field of a table. path: its name, with those of the fields around it. kind: its type; of one with fields in it
    only which kind it is."""

    path: str
    kind: str
    required: bool

    def __str__(self) -> str:
        return f"{'required' if self.required else 'optional'} {self.kind}"


SourceFields = Mapping[int, SourceField]
"""The fields of a table by their ids, those inside of others too."""


def fields_of(schema: Schema) -> SourceFields:
    """The fields of a table's schema."""
    return dict(_fields(schema.fields, ""))


def changed_fields(planned: SourceFields, now: SourceFields) -> tuple[str, ...]:
    """A phrase for each field of a plan that the table does not have any more as it was. A field that was added changes
    nothing for the plan."""
    return tuple(
        f"{before.path}: {before} is now {_as_it_is(before, now.get(number))}"
        for number, before in planned.items()
        if now.get(number) != before
    )


UNREADABLE: Mapping[str, str] = {"time": "is a time of day, which Spark does not have"}
"""Why a column of a table cannot be read, by its type. Another writer may add one to a table."""


def unreadable_fields(fields: SourceFields) -> tuple[str, ...]:
    """A phrase for each field that Spark cannot read."""
    return tuple(
        f"column {one.path} of type {one.kind} {UNREADABLE[one.kind]}"
        for one in fields.values()
        if one.kind in UNREADABLE
    )


PLANNED = "A run that starts now is planned with it, and stops if it does not fit."
PLANS_AGAIN = "The run plans again before its next batch."
WITHOUT_NEW = "What is new in it is read from the next start on."


def answer_to_fields(planned: SourceFields, now: SourceFields) -> str:
    """The sentence on what a run does about the fields that a table has now. planned: those that it reads."""
    if planned == now:
        return PLANNED  # they changed between two looks, and the plan was made in between
    return PLANS_AGAIN if changed_fields(planned, now) else WITHOUT_NEW


def described_fields(fields: SourceFields) -> dict[str, str]:
    """The type of each field in words, by its path, with the id, by which two columns of one name differ."""
    return {one.path: f"{one}, id {number}" for number, one in fields.items()}


def _as_it_is(before: SourceField, now: SourceField | None) -> str:
    if now is None:
        return "gone"
    return str(now) if now.path == before.path else f"{now.path}, {now}"


def _fields(fields: tuple[NestedField, ...], prefix: str) -> Iterator[tuple[int, SourceField]]:
    for field in fields:
        path, kind = f"{prefix}{field.name}", field.field_type
        has_fields = isinstance(kind, StructType | ListType | MapType)
        word = type(kind).__name__.removesuffix("Type").lower() if has_fields else str(kind)
        yield field.field_id, SourceField(path=path, kind=word, required=field.required)
        match kind:
            case StructType():
                yield from _fields(kind.fields, f"{path}.")
            case ListType():
                yield from _fields((kind.element_field,), f"{path}.")
            case MapType():
                yield from _fields((kind.key_field, kind.value_field), f"{path}.")
