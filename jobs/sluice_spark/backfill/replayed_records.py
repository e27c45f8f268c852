"""Rejected records that are read again, and what has to hold of what they give today before any of it is published.

They are read by their place where the source still holds them, else as the quarantine holds them. What they give has to
be traced back to each of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyiceberg.catalog import Catalog
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from sluice.backfill.read_bounds import OffsetRange
from sluice.backfill.replayable_rows import OpenRow, PresentSource, arriving_input, stored_value
from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import IcebergSource, KafkaSource
from sluice.errors import UnpublishableError
from sluice.record_values.rejection import RejectionKind
from sluice.settings import KafkaConnection, Settings
from sluice_spark.backfill.held_rows import is_between
from sluice_spark.session.columns import quoted, quoted_table, row_hashes
from sluice_spark.sources import kafka, read_input

_FARTHEST = 10_000
"""Between two records of a partition that are read in one go: what lies between them is read too."""

_PLACE = "_sluice_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsAgain:
    """Records as their source gives them, before they are decoded.

    rows: each once; records: how many they are. by_source, by_stored: the places that were found in the source, and in
        the quarantine alone.
    left: how many rows cannot be read, by the reason. kept: what is persisted until all is done.
    """

    rows: DataFrame
    records: int
    by_source: frozenset[str]
    by_stored: frozenset[str]
    left: Mapping[str, int]
    kept: tuple[DataFrame, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedReading:
    """The reading of the records of one stream's rejected rows, through its one arriving input."""

    spark: SparkSession
    stream: LoadedStream
    settings: Settings
    catalog: Catalog
    present: PresentSource

    def read(self, rows: Mapping[str, Sequence[OpenRow]]) -> RecordsAgain:
        """Find the records. rows: those of the quarantine, by place.

        Raises
        ------
        LakehouseError, SettingsError: when the source cannot be read.
        """
        found = arriving_input(self.stream.declaration)
        assert found is not None  # noqa: S101  # refused before
        declared = found[1]
        source = declared.declared_source.source
        if isinstance(source, IcebergSource):
            return self._of_table(source, rows)
        held: list[DataFrame] = []
        places: frozenset[str] = frozenset()
        if isinstance(source, KafkaSource):
            there = {place: of_place for place, of_place in rows.items() if self.present.has(of_place[0])}
            for part in self._of_topics(source, there):
                held.append(part)
                places |= {
                    _place_of(row.asDict(), there) for row in part.select("topic", "partition", "offset").collect()
                }
        rest = {place: of_place[0] for place, of_place in rows.items() if place not in places}
        stored, left = self._stored(declared, rest)
        arriving = [*held, *([stored] if stored is not None else [])]
        schema = read_input(self.spark, declared, self.settings).schema
        empty = self.spark.createDataFrame([], schema)
        gone = "the source does not hold its record any more, nor the quarantine its value as it came"
        return RecordsAgain(
            rows=reduce(DataFrame.unionByName, [part.select(*schema.names) for part in arriving], empty),
            records=len(places) + len(rest) - len(left),
            by_source=places,
            by_stored=frozenset(rest) - left,
            left={gone: sum(len(rows[place]) for place in left)} if left else {},
            kept=tuple(held),
        )

    def _of_topics(self, source: KafkaSource, rows: Mapping[str, Sequence[OpenRow]]) -> Iterator[DataFrame]:
        """The records that the topics still hold."""
        from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

        connection = self.settings.connection(source.connection, KafkaConnection)
        topics = KafkaTopics(connection)
        present = topics.partitions_of(source)
        wanted: dict[str, dict[int, list[int]]] = {}
        for of_place in rows.values():
            place = of_place[0].fields
            if place["partition"] in present.get(place["topic"], ()):
                wanted.setdefault(place["topic"], {}).setdefault(place["partition"], []).append(place["offset"])
        bounds = topics.bounds_of(wanted, isolation="read_uncommitted") if wanted else {}
        numbers = [
            (topic, partition, offset)
            for topic, partitions in wanted.items()
            for partition, offsets in partitions.items()
            for offset in sorted(set(offsets))
            if bounds[topic][partition].first <= offset < bounds[topic][partition].end
        ]
        chosen = self.spark.createDataFrame(numbers, "topic string, partition int, offset long")
        for ranges in _ranges(numbers):
            read = kafka.read_ranges(self.spark, source, connection, ranges, left_out={})
            yield read.join(fn.broadcast(chosen), ["topic", "partition", "offset"], "left_semi").persist()

    def _stored(
        self, declared: InputDeclaration, rows: Mapping[str, OpenRow]
    ) -> tuple[DataFrame | None, frozenset[str]]:
        """Records made of what the quarantine holds, with null for all else; and the places where it is too little."""
        content = "value" if declared.declared_source.kind == "kafka" else "data"
        values = {place: stored_value(row, declared) for place, row in rows.items()}
        usable = [{**rows[place].fields, content: value} for place, value in values.items() if value is not None]
        left = frozenset(place for place, value in values.items() if value is None)
        if not usable:
            return None, left
        schema = read_input(self.spark, declared, self.settings).schema
        tuples = [tuple(_fit(row.get(name)) for name in schema.names) for row in usable]
        return self.spark.createDataFrame(tuples, schema), left

    def _of_table(self, source: IcebergSource, rows: Mapping[str, Sequence[OpenRow]]) -> RecordsAgain:
        """The rows of a table whose columns are the position of a rejected one. A position that more rows have than
        were rejected says nothing: the others were published."""
        table = self.spark.table(quoted_table(self.settings.catalog.name, source.table))
        by_columns: dict[tuple[str, ...], list[str]] = {}
        for place, of_place in rows.items():
            by_columns.setdefault(tuple(sorted(of_place[0].fields)), []).append(place)
        left: dict[str, int] = {}
        parts: list[DataFrame] = []
        for columns, places in by_columns.items():
            if not set(columns) <= set(table.columns):
                reason = f"its position does not consist of columns of {source.table}"
                left[reason] = left.get(reason, 0) + sum(len(rows[place]) for place in places)
                continue
            kinds = table.select(*map(quoted, columns)).schema
            chosen = self.spark.createDataFrame([(place,) for place in places], f"{_PLACE} string")
            keys = chosen.select(_PLACE, fn.from_json(_PLACE, kinds).alias("_sluice_keys"))
            same = [_comparable(fn.col(quoted(kind.name)), kind) for kind in kinds]
            wanted = [_comparable(fn.col("_sluice_keys").getField(kind.name), kind) for kind in kinds]
            is_there = reduce(and_, (left_one == right_one for left_one, right_one in zip(same, wanted, strict=True)))
            parts.append(table.join(fn.broadcast(keys), is_there).select(*map(quoted, table.columns), _PLACE))
        if not parts:
            return RecordsAgain(rows=table.limit(0), records=0, by_source=frozenset(), by_stored=frozenset(), left=left)
        read = reduce(DataFrame.unionByName, parts).persist()
        counts = {row[_PLACE]: int(row["count"]) for row in read.groupBy(_PLACE).count().collect()}
        good = {place for place, number in counts.items() if number == len(rows[place])}
        for place in {place for columns in by_columns.values() for place in columns} - good:
            if set(rows[place][0].fields) <= set(table.columns):
                found = counts.get(place, 0)
                held = "no row" if not found else "other rows too" if found > len(rows[place]) else "fewer rows"
                reason = f"{source.table} holds {held} at its position"
                left[reason] = left.get(reason, 0) + len(rows[place])
        chosen = self.spark.createDataFrame([(place,) for place in sorted(good)], f"{_PLACE} string")
        kept = read.join(fn.broadcast(chosen), _PLACE, "left_semi").select(*map(quoted, table.columns))
        return RecordsAgain(
            rows=kept,
            records=sum(counts[place] for place in good),
            by_source=frozenset(good),
            by_stored=frozenset(),
            left=left,
            kept=(read,),
        )


def _comparable(value: Column, kind: StructField) -> Column:
    """A value as a position has it: `to_json` writes times to the millisecond. Rows that it writes alike are all found,
    so that their number says it."""
    is_time = isinstance(kind.dataType, TimestampType | TimestampNTZType)
    return fn.date_trunc("millisecond", value) if is_time else value


def _fit(value: object) -> object:
    return bytearray(value) if isinstance(value, bytes) else value


def _place_of(found: Mapping[str, object], rows: Collection[str]) -> str:
    """The place of a record, as the quarantine writes it."""
    compact = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
    return compact if compact in rows else next(place for place in rows if _same(place, found))


def _same(place: str, found: Mapping[str, object]) -> bool:
    try:
        return bool(json.loads(place) == dict(found))
    except ValueError:
        return False


def _ranges(numbers: Sequence[tuple[str, int, int]]) -> Iterator[Mapping[str, Mapping[int, OffsetRange]]]:
    """Ranges of offsets, one of each partition at a time, that do not reach far over what is not asked for.

    Parameters
    ----------
    numbers: topic, partition and offset, in order within each partition.
    """
    clusters: dict[tuple[str, int], list[OffsetRange]] = {}
    for topic, partition, offset in numbers:
        of_partition = clusters.setdefault((topic, partition), [])
        if of_partition and offset - of_partition[-1].end < _FARTHEST:
            of_partition[-1] = OffsetRange(first=of_partition[-1].first, end=offset + 1)
        else:
            of_partition.append(OffsetRange(first=offset, end=offset + 1))
    for index in range(max(map(len, clusters.values()), default=0)):
        ranges: dict[str, dict[int, OffsetRange]] = {}
        for (topic, partition), of_partition in clusters.items():
            if index < len(of_partition):
                ranges.setdefault(topic, {})[partition] = of_partition[index]
        yield ranges


_NUMBERED = (DateType, TimestampType, TimestampNTZType, IntegralType)
_ORDERED = (*_NUMBERED, DecimalType, StringType)
"""Of these types Iceberg knows between which values those of a file lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What records give today. again: the places of those that are rejected again, by their kind."""

    rows: DataFrame
    count: int
    again: Mapping[str, str]


def require_positions(stream: str, rejected: Sequence[Row]) -> None:
    """Refuse what is rejected again and cannot be identified by its position: a row that breaks a rule has none.

    Raises
    ------
    UnpublishableError: with the rules, or the kinds.
    """
    times = Counter(row["position"] for row in rejected)
    unknown = [row for row in rejected if row["position"] is None or times[row["position"]] > 1]
    if unknown:
        kinds = {
            row["reason"] if row["kind"] == RejectionKind.RULE else row["kind"] or "by the transformation"
            for row in unknown
        }
        raise UnpublishableError(
            f"{len(unknown)} records of {stream} are rejected again without a position of their own "
            f"({'; '.join(sorted(kinds))}), so it is unknown which they are. Nothing was published.",
            next_step="Correct the transformation or the rule, or replay the other records by `--position`.",
        )


def require_balance(stream: str, computed: Computed, places: frozenset[str], records: int) -> None:
    """Refuse what cannot be traced back to records.

    Raises
    ------
    UnpublishableError: when a record is rejected under another place, or gives more than a row.
    """
    if elsewhere := computed.again.keys() - places:
        raise UnpublishableError(
            f"{len(elsewhere)} records of {stream} are rejected again under another position, so it is unknown which "
            "they are. Nothing was published.",
            next_step="Correct the transformation, or replay the other records by `--position`.",
        )
    if computed.count + len(computed.again) > records:
        raise UnpublishableError(
            f"{records} records of {stream} give {computed.count} rows and {len(computed.again)} rejections: a record "
            "gives several, and some of them may be visible already. Nothing was published.",
            next_step="Backfill the interval of these records, or refresh the table.",
        )


def require_apart(stream: str, together: Computed, alone: Computed) -> None:
    """Refuse rows of records that are rejected too: the records would stay open, and give these rows once more.

    Parameters
    ----------
    alone: what those records give that are not rejected.

    Raises
    ------
    UnpublishableError: when others gave rows.
    """
    if alone.again or alone.count != together.count:
        raise UnpublishableError(
            f"Records of {stream} give rows and are rejected, both at once, or give something else each time: "
            f"{together.count} rows of all, {alone.count} of those that are not rejected. Nothing was published.",
            next_step="Backfill the interval of these records, or refresh the table.",
        )


def require_not_visible(stream: str, computed: Computed, held: DataFrame, *, allows_repeated: bool) -> int:
    """Refuse rows that the target holds already: code that published a record and rejected it, both at once, leaves an
    open row, and nothing else says that its record is visible. Records may also give equal rows rightfully, which only
    a person knows.

    Parameters
    ----------
    held: the rows of the target. allows_repeated: whether a person has said so.

    Returns
    -------
    How many there are.

    Raises
    ------
    UnpublishableError: with their number, when they are not allowed.
    """
    if not computed.count:
        return 0
    new = computed.rows.select(*(fn.col(quoted(one.name)).cast(one.dataType).alias(one.name) for one in held.schema))
    hashed, old = new.select(*row_hashes(new)), _near(new, held)
    found = hashed.join(old.select(*row_hashes(old)).distinct(), hashed.columns, "left_semi").count()
    if found and not allows_repeated:
        raise UnpublishableError(
            f"{found} of the {computed.count} rows that the records of {stream} give are in its table already: what "
            "rejected a record may have published it, too. Nothing was published.",
            next_step="Replay the other records by `--position`. Of these, discard what is visible, or backfill their "
            "interval. Where other records gave the rows that are there, repeat it with `--allow-repeated`.",
        )
    return found


def _near(rows: DataFrame, held: DataFrame) -> DataFrame:
    """The rows of a table whose times, numbers and texts lie where those of some rows do: Iceberg leaves most files out
    by them."""
    ordered = [one for one in rows.schema if isinstance(one.dataType, _ORDERED)]
    ends = [end(value) for value in map(_numbered, ordered) for end in (fn.min, fn.max)]
    if not ends:
        return held
    (found,) = rows.agg(*ends).collect()
    for n, one in enumerate(ordered):
        least, most = found[2 * n], found[2 * n + 1]
        value = fn.col(quoted(one.name))
        if least is None:
            held = held.where(value.isNull())
        elif isinstance(one.dataType, _NUMBERED):
            held = held.where(is_between(held, one.name, (least, most)))
        else:
            held = held.where(value.between(fn.lit(least), fn.lit(most)) | value.isNull())
    return held


def _numbered(value: StructField) -> Column:
    """A value, or the number by which Iceberg knows a time."""
    column = fn.col(quoted(value.name))
    if isinstance(value.dataType, DateType):
        return fn.unix_date(column)
    is_time = isinstance(value.dataType, TimestampType | TimestampNTZType)
    return fn.unix_micros(column.cast("timestamp")) if is_time else column
