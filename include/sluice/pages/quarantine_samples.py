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
from sluice.pages.masked_values import MASK, MaskedValue, hidden, masked_json, masked_line

SHOWN_SAMPLES = 20
LONGEST_VALUE, LONGEST_REASON = 2_000, 600
"""The most characters that a page shows of a value and of a reason."""

_PATH = re.compile(r"at `([^`]{1,200})`$")
_EVENT_TIME = re.compile(r"(the event time ).*( of `([^`]*)` is more than .* ahead of the clock)", re.DOTALL)
_SHORT = 4
"""A masked text of fewer characters is replaced in a reason only where it is a word of its own."""

_NAME = r"[\w.\[\]$ ]{1,400}"
_WITHOUT_DATA = re.compile(
    r"the record has no value"
    r"|the (value|line) is not UTF-8 text(, at `" + _NAME + r"`)?"
    r"|the value is not JSON: (JSON is malformed: [a-z0-9 ,'{}\[\]\"\-]{1,80} \(byte \d+\)|Input data was truncated"
    r"|half of a character, a lone surrogate, is no text)"
    r"|the value does not fit the declared columns: Expected `[a-z |]{1,80}`, got `[a-z]{1,20}`"
    r"|the value is nested too deeply"
    r"|the value has \d+ bytes; at most \d+ are decoded"
    r"|the value is not valid Avro of its schema: \d+ bytes are left over"
    r"|\w{1,128}: a value of type \w+ does not fit [\w<>\[\](), ]{1,80}"
    r"|the line has \d+ fields, not \d+"
    r"|the (value|line) lacks [\w, ]{1,4000}"
    r"|the line does not fit the declared columns: expected [^`]{1,200}, at `" + _NAME + r"`"
)
"""The reasons that the platform itself gives without any data of the record."""

_HIDDEN_REASON = "hidden with the value, of which it may repeat a part"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineSample:
    """One quarantined record.

    batch: as `<generation>:<batch>`. source: the name of the input; empty when it is unknown which it was.
    path: the field that the reason names; empty when it names none. position: where it stood in its source.
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
    reason = _reason(row["reason"], shown, masked_columns)
    path = _PATH.search(reason)
    return QuarantineSample(
        refused_at=row["refused_at"],
        batch=f"{row['generation']}:{row['batch']}",
        source=source,
        reason=_shown(reason, LONGEST_REASON),
        path=path[1] if path is not None else "",
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


def _reason(reason: str, value: MaskedValue, columns: tuple[str, ...]) -> str:
    """The reason, in which neither a masked value nor a part of a hidden one may stand."""
    if not columns:
        return reason
    if ahead := _EVENT_TIME.fullmatch(reason):
        return reason if ahead[3].casefold() not in _folded(columns) else f"{ahead[1]}{MASK}{ahead[2]}"
    if value.hidden_because:
        return reason if _WITHOUT_DATA.fullmatch(reason) else _HIDDEN_REASON
    for text in sorted(value.masked, key=len, reverse=True):
        whole = rf"(?<!\w){re.escape(text)}(?!\w)" if len(text) < _SHORT else re.escape(text)
        reason = re.sub(whole, MASK, reason, flags=re.IGNORECASE)
    return reason


def _folded(columns: tuple[str, ...]) -> frozenset[str]:
    return frozenset(column.casefold() for column in columns)


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
