"""Decodes blocks of JSON objects into Arrow columns. A value becomes exactly what it says, or it is rejected.

msgspec checks the JSON and the type of every value, `json_columns` what a column holds. Of a key that an object has
twice, msgspec silently takes the last. A record that has none is recognised without parsing it again: what was decoded,
written as JSON, has as many quotation marks as the record, because each key and each text has two. A field that is not
declared has marks of its own; then the whole record is decoded and written, and only if marks are missing still, Python
looks at each key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from sluice.declarations.value_declaration import Column, ValueColumn
from sluice.record_values.arrow_columns import Column as ArrowColumn
from sluice.record_values.arrow_columns import DecodedBlock, lacking_values
from sluice.record_values.block_facts import undeclared_fields, undeclared_rejection
from sluice.record_values.json_columnar import ColumnarJson, is_columnar
from sluice.record_values.json_columns import column_builder, field_builders, json_type, object_type
from sluice.record_values.rejection import (
    LARGEST_VALUE_BYTES,
    NO_VALUE,
    Rejection,
    RejectionKind,
    mismatch,
    too_large,
)

_PLACE = " - at `"
"""What msgspec puts between what it has found and the path, which has the names of fields and never a key of a map. Its
sentences are fixed, apart from types and, in those of malformed JSON, the number of a byte."""

_HALF_CHARACTER = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


class JsonBlockDecoder:
    """Decodes blocks of JSON objects.

    Parameters
    ----------
    columns: the declared columns. Fields that have no column are left out.
    rejects_undeclared: whether a value with such a field is rejected.

    Raises
    ------
    ValueError: when a column has a type that no JSON value can have.
    """

    def __init__(self, columns: Iterable[Column], *, rejects_undeclared: bool = False) -> None:
        declared = tuple(columns)
        self._types = {column.name: column.column_type for column in declared}
        self._rejects_undeclared = rejects_undeclared
        units = {column.name: column.unit for column in declared if isinstance(column, ValueColumn)}
        types = [(column.name, int if units.get(column.name) else json_type(column.column_type)) for column in declared]
        self._decoder = msgspec.json.Decoder(object_type(types))
        self._fields = field_builders(
            (column.name, column_builder(column.column_type, unit=units.get(column.name))) for column in declared
        )
        self._required = [column.name for column in declared if column.required]
        # Not the reader that is tried before: that one pauses after a block with a flaw, this one reads its rest.
        self._columnar = (
            ColumnarJson(declared, rejects_undeclared=rejects_undeclared) if is_columnar(declared) else None
        )

    def decode(self, values: Sequence[bytes | None]) -> DecodedBlock:
        """Decode a block of values; a null is rejected like any other value that is not a JSON object."""
        rejections: dict[int, Rejection] = {}
        places, objects = self._objects(values, rejections)
        texts = [value for index in places if (value := values[index]) is not None]
        if rejections and (found := self._at_once(texts)) is not None:
            spread = _spread(found.columns, places, rejections, len(values))
            return DecodedBlock(columns=spread, rejections=rejections, undeclared=found.undeclared)
        mismatches: dict[int, Rejection] = {}
        undeclared = self._look_at_keys(texts, mismatches) if _has_other_keys(texts, objects) else {}

        def report(index: int, path: str, need: str) -> None:
            mismatches.setdefault(index, mismatch(path, need))

        columns = [build([get(one) for one in objects], f"$.{name}", report) for name, get, build in self._fields]
        by_name = {name: column for (name, _, _), column in zip(self._fields, columns, strict=True)}
        mismatches = lacking_values(by_name, self._required) | mismatches
        rejections |= {places[index]: rejection for index, rejection in mismatches.items()}
        spread = _spread(columns, places, rejections, len(values))
        return DecodedBlock(columns=spread, rejections=rejections, undeclared=undeclared)

    def _look_at_keys(self, texts: Sequence[bytes], mismatches: dict[int, Rejection]) -> Mapping[str, int]:
        """How often each undeclared field was sent; what is rejected for its keys is added to `mismatches`."""
        whole = _whole_objects(texts)
        for index, key in _repeated_keys(texts, whole).items():
            mismatches[index] = Rejection(kind=RejectionKind.REPEATED_KEY, detail=key, quotes_data=True)
        objects = whole if whole is not None else [_parsed(text) for text in texts]
        if self._rejects_undeclared:
            for index, one in enumerate(objects):
                if names := undeclared_fields([one], self._types):
                    mismatches.setdefault(index, undeclared_rejection(names, are_data=True))
        return undeclared_fields(objects, self._types, with_nulls=self._rejects_undeclared)

    def _at_once(self, texts: Sequence[bytes]) -> DecodedBlock | None:
        """What was not rejected, read column by column; None when there is more to look at."""
        return self._columnar.decode(pa.array(texts, pa.binary())) if self._columnar is not None and texts else None

    def _objects(self, values: Sequence[bytes | None], rejections: dict[int, Rejection]) -> tuple[list[int], list[Any]]:
        """The decoded objects and where each comes from; what is rejected is added to `rejections`."""
        places, objects = [], []
        decode: Callable[[Any], Any] = self._decoder.decode if _are_texts(values) else self._decoded
        for index, value in enumerate(values):
            try:
                found = decode(value)
            except (ValueError, RecursionError):  # the errors of msgspec are ValueErrors
                found = self._decoded(value)
            if isinstance(found, Rejection):
                rejections[index] = found
            else:
                places.append(index)
                objects.append(found)
        return places, objects

    def _decoded(self, value: bytes | None) -> Any:
        """A decoded object, or why there is none."""
        if value is None:
            return NO_VALUE
        if len(value) > LARGEST_VALUE_BYTES:
            return too_large(len(value))
        try:
            value.decode()
            return self._decoder.decode(value)
        except UnicodeDecodeError:
            return Rejection(kind=RejectionKind.NOT_TEXT, quotes_data=False)
        except msgspec.ValidationError as error:
            detail, _, place = str(error).partition(_PLACE)
            return Rejection(kind=RejectionKind.MISMATCH, path=place.rstrip("`"), detail=detail, quotes_data=False)
        except RecursionError:
            return Rejection(kind=RejectionKind.TOO_DEEP, quotes_data=False)
        except ValueError as error:
            detail, is_fixed = str(error), isinstance(error, msgspec.DecodeError)
            if _HALF_CHARACTER.search(value):
                detail, is_fixed = "half of a character, a lone surrogate, is no text", True
            return Rejection(kind=RejectionKind.NOT_JSON, detail=detail, quotes_data=not is_fixed)


def _are_texts(values: Sequence[bytes | None]) -> bool:
    """Whether none of the values is null, too large or no UTF-8."""
    try:
        texts: Any = pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return bool(texts.null_count == 0 and texts.nbytes < LARGEST_VALUE_BYTES)


def _parsed(text: bytes) -> dict[str, Any]:
    """The fields of an object that msgspec has decoded, whatever numbers its undeclared fields have."""
    try:
        fields: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return fields


def _spread(
    columns: Sequence[ArrowColumn], places: Sequence[int], rejections: dict[int, Rejection], length: int
) -> list[ArrowColumn]:
    """The columns with a null in the place of each rejected value."""
    if not rejections:
        return list(columns)
    taken: list[int | None] = [None] * length
    for index, place in enumerate(places):
        taken[place] = None if place in rejections else index
    indices = pa.array(taken, pa.int64())
    return [column.take(indices) for column in columns]


_MARK = b'"'
_ESCAPED_MARK = rb"\u0022"
"""A quotation mark within a text that is written without one."""

_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode
_Objects = list[tuple[str, Any]]


class _RepeatedKeyError(ValueError):
    """A key is there twice."""


def _has_other_keys(values: Sequence[bytes], decoded: Sequence[Any]) -> bool:
    """Whether some of the values have keys that are not declared, or that are there twice.

    Parameters
    ----------
    values: JSON texts. decoded: what msgspec has decoded of each, without the fields that were not sent.
    """
    text = b"".join(values)
    return _ESCAPED_MARK in text or text.count(_MARK) != _encoder.encode_lines(decoded).count(_MARK)


def _repeated_keys(values: Sequence[bytes], whole: Sequence[Any] | None) -> dict[int, str]:
    """Find the values in which an object has a key twice.

    Parameters
    ----------
    values: JSON texts. whole: what `_whole_objects` makes of them.

    Returns
    -------
    The repeated key, by the index of the value.
    """
    text = b"".join(values)
    if (
        _ESCAPED_MARK not in text
        and whole is not None
        and text.count(_MARK) == _encoder.encode_lines(whole).count(_MARK)
    ):
        return {}
    suspects = [index for index, value in enumerate(values) if whole is None or not _has_all_marks(value, whole[index])]
    return {index: key for index in suspects if (key := _repeated_key(values[index])) is not None}


def _has_all_marks(value: bytes, whole: Any) -> bool:
    return _ESCAPED_MARK not in value and value.count(_MARK) == _encoder.encode(whole).count(_MARK)


def _whole_objects(values: Sequence[bytes]) -> list[Any] | None:
    """The values with all their fields; None when one has a number that no Python number holds."""
    try:
        return [_decode(value) for value in values]
    except msgspec.DecodeError:
        return None


def _repeated_key(value: bytes) -> str | None:
    try:
        json.loads(value, object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=str)
    except _RepeatedKeyError as error:
        return str(error)
    return None


def _object(pairs: _Objects) -> None:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise _RepeatedKeyError(next(key for index, key in enumerate(keys) if key in keys[:index]))
