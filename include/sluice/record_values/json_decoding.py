"""Decodes blocks of JSON objects into Arrow columns. A value becomes exactly what it says, or it is rejected.

msgspec checks the JSON and the type of every value, `json_columns` what a column holds, `repeated_keys` the keys.
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
from sluice.record_values.decoded_block import DecodedBlock
from sluice.record_values.field_counts import undeclared_fields, undeclared_reason
from sluice.record_values.json_columnar import ColumnarJson, is_columnar
from sluice.record_values.json_columns import column_builder, field_builders
from sluice.record_values.json_types import json_type, object_type
from sluice.record_values.rejected_value import LARGEST_VALUE_BYTES, too_large
from sluice.record_values.repeated_keys import has_other_keys, repeated_keys, whole_objects

NO_VALUE = "the record has no value"
NOT_UTF8 = "the value is not UTF-8 text"
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
        rejections: dict[int, str] = {}
        places, objects = self._objects(values, rejections)
        texts = [value for index in places if (value := values[index]) is not None]
        if rejections and (found := self._at_once(texts)) is not None:
            spread = _spread(found.columns, places, rejections, len(values))
            return DecodedBlock(columns=spread, rejections=rejections, undeclared=found.undeclared)
        mismatches: dict[int, str] = {}
        undeclared = self._look_at_keys(texts, mismatches) if has_other_keys(texts, objects) else {}

        def report(index: int, path: str, need: str) -> None:
            mismatches.setdefault(index, f"the value does not fit the declared columns: expected {need}, at `{path}`")

        columns = [build([get(one) for one in objects], f"$.{name}", report) for name, get, build in self._fields]
        self._report_absent(columns, mismatches)
        rejections |= {places[index]: reason for index, reason in mismatches.items()}
        spread = _spread(columns, places, rejections, len(values))
        return DecodedBlock(columns=spread, rejections=rejections, undeclared=undeclared)

    def _look_at_keys(self, texts: Sequence[bytes], mismatches: dict[int, str]) -> Mapping[str, int]:
        """How often each undeclared field was sent; what is rejected for its keys is added to `mismatches`."""
        whole = whole_objects(texts)
        mismatches |= {
            index: f"the value has the key {key} twice" for index, key in repeated_keys(texts, whole).items()
        }
        objects = whole if whole is not None else [_parsed(text) for text in texts]
        if self._rejects_undeclared:
            for index, one in enumerate(objects):
                if names := undeclared_fields([one], self._types):
                    mismatches.setdefault(index, undeclared_reason(names))
        return undeclared_fields(objects, self._types, with_nulls=self._rejects_undeclared)

    def _at_once(self, texts: Sequence[bytes]) -> DecodedBlock | None:
        """What was not rejected, read column by column; None when there is more to look at."""
        return self._columnar.decode(pa.array(texts, pa.binary())) if self._columnar is not None and texts else None

    def _objects(self, values: Sequence[bytes | None], rejections: dict[int, str]) -> tuple[list[int], list[Any]]:
        """The decoded objects and where each comes from; what is rejected is added to `rejections`."""
        places, objects = [], []
        decode: Callable[[Any], Any] = self._decoder.decode if _are_texts(values) else self._decoded
        for index, value in enumerate(values):
            try:
                found = decode(value)
            except (ValueError, RecursionError):  # the errors of msgspec are ValueErrors
                found = self._decoded(value)
            if isinstance(found, str):
                rejections[index] = found
            else:
                places.append(index)
                objects.append(found)
        return places, objects

    def _decoded(self, value: bytes | None) -> Any:
        """A decoded object, or the reason why there is none."""
        if value is None:
            return NO_VALUE
        if len(value) > LARGEST_VALUE_BYTES:
            return too_large(value)
        try:
            value.decode()
            return self._decoder.decode(value)
        except UnicodeDecodeError:
            return NOT_UTF8
        except msgspec.ValidationError as error:
            return f"the value does not fit the declared columns: {error}"
        except RecursionError:
            return "the value is nested too deeply"
        except ValueError as error:
            if _HALF_CHARACTER.search(value):
                return "the value is not JSON: half of a character, a lone surrogate, is no text"
            return f"the value is not JSON: {error}"

    def _report_absent(self, columns: Sequence[ArrowColumn], mismatches: dict[int, str]) -> None:
        names = [name for name, _, _ in self._fields]
        absent: dict[int, list[str]] = {}
        for name in self._required:
            column = columns[names.index(name)]
            if column.null_count:
                for index in column.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist():
                    absent.setdefault(index, []).append(name)
        for index, lacking in absent.items():
            mismatches.setdefault(index, f"the value lacks {', '.join(lacking)}")


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
    columns: Sequence[ArrowColumn], places: Sequence[int], rejections: dict[int, str], length: int
) -> list[ArrowColumn]:
    """The columns with a null in the place of each rejected value."""
    if not rejections:
        return list(columns)
    taken: list[int | None] = [None] * length
    for index, place in enumerate(places):
        taken[place] = None if place in rejections else index
    indices = pa.array(taken, pa.int64())
    return [column.take(indices) for column in columns]
