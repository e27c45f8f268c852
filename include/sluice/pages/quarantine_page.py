"""The page of a stream's quarantine: its newest records, read from the table within bounds of time and size."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.declarations.column_types import PrimitiveType, StructType
from sluice.declarations.input_declaration import SourceDeclaration
from sluice.declarations.loaded_declarations import LoadedTable
from sluice.declarations.source_declarations import FilesSource, IcebergSource, KafkaSource, KinesisSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.value_declaration import Column, ValueColumn
from sluice.messages import plain_text, redacted
from sluice.pages.masked_values import LONGEST_SEARCHED, MaskedValue, hidden, masked_json, masked_line
from sluice.pages.table_looks import BoundedLooks
from sluice.processes.deadline import Deadline
from sluice.record_values.rejection import Rejection, RejectionKind
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table
from sluice.tables.newest_rows import read_newest_rows

SHOWN_SAMPLES = 20
LONGEST_VALUE, LONGEST_REASON = 2_000, 600
"""The most characters that a page shows of a value and of a reason."""

_HIDDEN_REASON = "hidden: it may repeat masked data"

_NUMBER = r"\d+"
_PATH = re.compile(r"(?:\$|[A-Za-z_]\w{0,127})(?:\.[A-Za-z_]\w{0,127}|\[(?:\.\.\.|key|\d{1,9})\])*", re.ASCII)
"""A path in the names of a declaration or of a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSample:
    """One quarantined record.

    batch: as `<generation>:<batch>`. source: the name of the input; empty when it is unknown which it was.
    path: the column or field that the reason is about; empty when it is about none.
    position: where it stood in its source.
    value: none when the record had none; empty when it is hidden, and `hidden_because` then says why.
    resolved_at: when it was resolved; unset while it is open. resolution: how.
    """

    refused_at: datetime
    batch: str
    source: str
    reason: str
    path: str
    position: str
    value: str | None
    hidden_because: str = ""
    resolved_at: datetime | None = None
    resolution: str = ""


_NOTHING = StructType(())


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMasks:
    """The masks of a stream.

    masked: the columns that are masked, as names and paths. inputs: the columns of the values of each input that is
    read as a stream; none are known of records that are not decoded. feed: the columns of changes for a table, which
    are rejected as whole rows.
    """

    masked: tuple[str, ...]
    inputs: Mapping[str, StructType]
    feed: StructType = _NOTHING

    def columns_of(self, source: str) -> StructType:
        """The columns of a record. source: the name of its input; empty when it is unknown which it was."""
        return self.inputs.get(source, self.feed if not source else _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinePage:
    """What the page of a quarantine shows.

    samples: the newest first. has_table: whether the table is there. is_cut: whether there may be older records in
    files that were not looked at. masked_columns: those declared.
    """

    table: str
    samples: tuple[QuarantineSample, ...]
    has_table: bool
    is_cut: bool
    masked_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineReading:
    """Reads quarantines for the pages of one process. Safe to use from many threads.

    open: connects to the catalog. looks: the bounds of a look.
    """

    settings: Settings
    open: Callable[[Settings], Catalog] = open_catalog
    looks: BoundedLooks = field(default_factory=lambda: BoundedLooks(at="quarantines"))

    def load(self, declaration: StreamDeclaration, tables: Mapping[str, LoadedTable]) -> QuarantinePage:
        """Read the newest records of a stream's quarantine.

        Parameters
        ----------
        tables: the declared tables, by name.

        Raises
        ------
        LakehouseError: when the catalog or the object store cannot be read, or as `BoundedLooks.look` raises it.
        """
        masks = record_masks_of(declaration, tables)
        return self.looks.look(lambda deadline: self._page_of(declaration, masks, deadline))

    def _page_of(self, declaration: StreamDeclaration, masks: RecordMasks | None, deadline: Deadline) -> QuarantinePage:
        table = load_table(self.open(self.settings), declaration.quarantine_table)
        found = None
        if table is not None:
            found = read_newest_rows(
                table,
                time_column="refused_at",
                limit=SHOWN_SAMPLES,
                longest_text=LONGEST_SEARCHED,
                deadline=deadline,
            )
        return QuarantinePage(
            table=declaration.quarantine_table,
            samples=tuple(sample_of(row, declaration, masks) for row in (found.rows if found is not None else ())),
            has_table=table is not None,
            is_cut=found is not None and found.is_cut,
            masked_columns=declaration.masked_columns,
        )


def sample_of(row: Mapping[str, Any], declaration: StreamDeclaration, masks: RecordMasks | None) -> QuarantineSample:
    """What is shown of a row of the quarantine. Pure.

    Parameters
    ----------
    masks: from `record_masks_of` the declaration.
    """
    place = _object_in(row["position"])
    source = _source_of(place, declaration)
    value, shown = row["payload"], MaskedValue(text=row["payload"] or "")
    if masks is not None and value is not None:
        shown = _masked(value, masks, _record_source(place, source, declaration), _csv_of(source, declaration))
    reason, path = _reason_and_path(row, is_masked=masks is not None)
    return QuarantineSample(
        refused_at=row["refused_at"],
        batch=f"{row['generation']}:{row['batch']}",
        source=source,
        reason=_shown(reason, LONGEST_REASON),
        path=_shown(path, LONGEST_REASON),
        position=_position(row["position"], masks, declaration),
        value=None if value is None else _shown(shown.text, LONGEST_VALUE),
        hidden_because=shown.hidden_because,
        resolved_at=row.get("resolved_at"),
        resolution=_shown(row.get("resolution") or "", LONGEST_REASON),
    )


def _masked(value: str, masks: RecordMasks, source: str, files: FilesSource | None) -> MaskedValue:
    """The value with masks. source: the input whose columns it has. files: the csv files that it is a line of."""
    columns = masks.columns_of(source)
    if files is None:
        return masked_json(value, columns, masks.masked)
    if files.header:
        return hidden("the order of its fields is that of its file's first line, so its masked columns cannot be found")
    return masked_line(value, columns, masks.masked)


def _record_source(place: Mapping[str, Any], source: str, declaration: StreamDeclaration) -> str:
    """The input whose columns a record has; empty for a change of a feed, whose position is its keys."""
    feeds = any(one.iceberg is not None and one.iceberg.operation_column for one in declaration.outputs.values())
    if not feeds or not source or _is_place(place, declaration.inputs[source].declared_source.source):
        return source
    return ""


def _csv_of(source: str, declaration: StreamDeclaration) -> FilesSource | None:
    """The csv files that a record came from; of an unknown input those of any."""
    inputs = [declared for name, declared in declaration.inputs.items() if declared.is_stream and source in (name, "")]
    files = (declared.declared_source.files for declared in inputs)
    return next((one for one in files if one is not None and one.format == "csv"), None)


def _source_of(position: Mapping[str, Any], declaration: StreamDeclaration) -> str:
    """The name of the input that a record came from; empty when it is unknown which."""
    inputs = {name: declared for name, declared in declaration.inputs.items() if declared.is_stream}
    if len(inputs) == 1:
        return next(iter(inputs))
    found = [name for name, declared in inputs.items() if _is_from(position, declared.declared_source.source)]
    return found[0] if len(found) == 1 else ""


def _is_from(position: Mapping[str, Any], source: object) -> bool:
    match source:
        case KafkaSource():
            named = source.topics or tuple(source.assignment or ())
            pattern, topic = source.topic_pattern, position.get("topic")
            return isinstance(topic, str) and (topic in named or bool(pattern and re.fullmatch(pattern, topic)))
        case KinesisSource():
            return "shard" in position and position.get("stream") == source.stream
        case FilesSource():
            return set(position) == {"file"}
    return False


def _is_place(position: Mapping[str, Any], source: object) -> bool:
    """Whether a position is one as Sluice writes it, and so holds nothing of the record itself."""
    match source:
        case KafkaSource():
            forms = {"topic": ".+", "partition": _NUMBER, "offset": _NUMBER}
        case KinesisSource():
            forms = {"stream": ".+", "shard": r"shardId-\d+", "sequence_number": _NUMBER}
        case FilesSource():
            forms = {"file": r"(?:[a-z][a-z0-9+.-]*:)?/.+"}
        case _:
            return False
    return (
        set(position) == set(forms)
        and all(re.fullmatch(form, str(position[name])) for name, form in forms.items())
        and _is_from(position, source)
    )


def _reason_and_path(row: Mapping[str, Any], *, is_masked: bool) -> tuple[str, str]:
    """Why a row was rejected, and the path. Where columns are masked, a reason is shown as it is only if it is known to
    repeat no data. Of one that repeats some, the kind and the path are shown; of one of which it is unknown, nothing:
    a transformation gave it, or the row is older than the column that says so.
    """
    path, quotes_data = row.get("path") or "", row.get("quotes_data")
    if not is_masked or quotes_data is False:
        return row["reason"], path
    if quotes_data is None or row.get("kind") not in set(RejectionKind):
        return _HIDDEN_REASON, ""
    path = path if _PATH.fullmatch(path) else ""
    return Rejection(kind=RejectionKind(row["kind"]), path=path, quotes_data=False).sentence, path


def _position(position: str | None, masks: RecordMasks | None, declaration: StreamDeclaration) -> str:
    """Where a record stood, in words: of a change feed these are keys of the row, so masks belong here as well."""
    if position is None:
        return ""
    place = _object_in(position)
    sources = [declared.declared_source.source for declared in declaration.inputs.values() if declared.is_stream]
    shown = MaskedValue(text=position)
    if masks is not None and not any(_is_place(place, source) for source in sources):
        columns = masks.columns_of(_record_source(place, _source_of(place, declaration), declaration))
        shown = masked_json(position, columns, masks.masked)
    if shown.hidden_because:
        return "hidden"
    fields = _object_in(shown.text)
    words = ", ".join(f"{key} {one if isinstance(one, str) else json.dumps(one)}" for key, one in fields.items())
    return _shown(words or shown.text, LONGEST_REASON)


def _object_in(position: str | None) -> Mapping[str, Any]:
    try:
        fields = json.loads(position or "")
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _shown(text: str, longest: int) -> str:
    """The text without secrets and without characters that a page cannot show, cut to a length."""
    return plain_text(redacted(text[: 2 * longest]), longest=longest)


def record_masks_of(declaration: StreamDeclaration, tables: Mapping[str, LoadedTable]) -> RecordMasks | None:
    """The masks of a stream; none when it declares none. Pure.

    Parameters
    ----------
    tables: the declared tables, by name.
    """
    if not declaration.masked_columns:
        return None
    inputs = {
        name: _columns_of_source(declared.declared_source, tables)
        for name, declared in declaration.inputs.items()
        if declared.is_stream
    }
    return RecordMasks(masked=declaration.masked_columns, inputs=inputs, feed=_feed_of(declaration, tables))


def _columns_of_source(declared: SourceDeclaration, tables: Mapping[str, LoadedTable]) -> StructType:
    if declared.value is not None:
        return _as_struct(declared.value.columns)
    if declared.files is not None:
        return _as_struct(declared.files.columns)
    source = declared.source
    if isinstance(source, IcebergSource) and source.table in tables:
        return _as_struct(tables[source.table].declaration.columns)
    return _NOTHING


def _feed_of(declaration: StreamDeclaration, tables: Mapping[str, LoadedTable]) -> StructType:
    """The columns of the changes of the only feed; of several it is unknown to which a change belongs."""
    feeds = [
        output.iceberg
        for output in declaration.outputs.values()
        if output.iceberg is not None and output.iceberg.operation_column is not None
    ]
    if len(feeds) != 1 or feeds[0].table not in tables:
        return _NOTHING
    columns = _as_struct(tables[feeds[0].table].declaration.columns).fields
    return StructType((*columns, (str(feeds[0].operation_column), PrimitiveType("string"))))


def _as_struct(columns: Iterable[Column]) -> StructType:
    """The columns as one type; a time that is sent as a number that counts from 1970 is a number."""
    return StructType(
        tuple(
            (
                column.name,
                PrimitiveType("long") if isinstance(column, ValueColumn) and column.unit else column.column_type,
            )
            for column in columns
        )
    )
