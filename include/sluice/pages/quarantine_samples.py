"""The newest records in the quarantine of a stream, as a page may show them: bounded, and with masks where declared."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sluice.declarations.source_declarations import FilesSource, KafkaSource, KinesisSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.messages.plain_text import plain_text
from sluice.messages.redaction import redacted
from sluice.pages.masked_values import MaskedValue, hidden, masked_json, masked_line
from sluice.record_values.rejection import Rejection, RejectionKind

SHOWN_SAMPLES = 20
LONGEST_VALUE, LONGEST_REASON = 2_000, 600
"""The most characters that a page shows of a value and of a reason."""

_HIDDEN_REASON = "hidden: it may repeat masked data"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSample:
    """One quarantined record.

    batch: as `<generation>:<batch>`. source: the name of the input; empty when it is unknown which it was.
    path: the column or field that the reason is about; empty when it is about none.
    position: where it stood in its source.
    value: none when the record had none; empty when it is hidden, and `hidden_because` then says why.
    """

    refused_at: datetime
    batch: str
    source: str
    reason: str
    path: str
    position: str
    value: str | None
    hidden_because: str = ""


def sample_of(
    row: Mapping[str, Any], declaration: StreamDeclaration, masked_columns: tuple[str, ...]
) -> QuarantineSample:
    """What is shown of a row of the quarantine. Pure.

    Parameters
    ----------
    masked_columns: from `masked_columns_of` the declaration.
    """
    source = _source_of(_object_in(row["position"]), declaration)
    value, shown = row["payload"], MaskedValue(text=row["payload"] or "")
    if masked_columns and value is not None:
        shown = _masked(value, masked_columns, _csv_of(source, declaration))
    reason, path = _reason_and_path(row, masked_columns)
    return QuarantineSample(
        refused_at=row["refused_at"],
        batch=f"{row['generation']}:{row['batch']}",
        source=source,
        reason=_shown(reason, LONGEST_REASON),
        path=_shown(path, LONGEST_REASON),
        position=_position(row["position"], masked_columns),
        value=None if value is None else _shown(shown.text, LONGEST_VALUE),
        hidden_because=shown.hidden_because,
    )


def _masked(value: str, columns: tuple[str, ...], files: FilesSource | None) -> MaskedValue:
    """The value with masks. files: the csv files that it is a line of."""
    if files is None:
        return masked_json(value, columns)
    if files.header:
        return hidden("the order of its fields is that of its file's first line, so its masked columns cannot be found")
    return masked_line(value, [column.name for column in files.columns], columns)


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


def _reason_and_path(row: Mapping[str, Any], columns: tuple[str, ...]) -> tuple[str, str]:
    """Why a row was rejected, and the path. Where columns are masked, a reason is shown as it is only if it is known to
    repeat no data. Of one that repeats some, the kind and the path are shown; of one of which it is unknown, nothing:
    a transformation gave it, or the row is older than the column that says so.
    """
    path, quotes_data = row.get("path") or "", row.get("quotes_data")
    if not columns or quotes_data is False:
        return row["reason"], path
    if quotes_data is None or row.get("kind") not in set(RejectionKind):
        return _HIDDEN_REASON, ""
    return Rejection(kind=RejectionKind(row["kind"]), path=path, quotes_data=False).sentence, path


def _position(position: str | None, columns: tuple[str, ...]) -> str:
    """Where a record stood, in words: of a change feed these are keys of the row, so masks belong here as well."""
    if position is None:
        return ""
    shown = masked_json(position, columns) if columns else MaskedValue(text=position)
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
