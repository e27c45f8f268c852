"""Decodes blocks of csv lines into Arrow columns. A field becomes exactly what it says, or its line is rejected.

Spark's reader has split the lines into fields; quotes and line breaks within them are taken as RFC 4180 says. An
empty field is null, and an empty field in quotes is an empty text.

Source: https://www.rfc-editor.org/rfc/rfc4180
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.declarations.value_declaration import Column, ValueColumn
from sluice.record_values.arrow_columns import Column as ArrowColumn
from sluice.record_values.arrow_columns import text_builder
from sluice.record_values.decoded_block import DecodedBlock
from sluice.record_values.rejected_value import LARGEST_VALUE_BYTES

_REPLACED = "\N{REPLACEMENT CHARACTER}"
"""What Spark's reader puts in the place of bytes that are not UTF-8."""

_FIELD = re.compile(r'(?:"(?P<quoted>[^"]*(?:""[^"]*)*)")?(?P<rest>[^,]*)(?P<comma>,?)')


class CsvBlockDecoder:
    """Decodes blocks of lines that are split into fields.

    Parameters
    ----------
    columns: the declared columns.

    Raises
    ------
    ValueError: when a column has a type that no field can have.
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        declared = tuple(columns)
        self.names = tuple(column.name for column in declared)
        self._builders = [
            text_builder(column.column_type, unit=column.unit if isinstance(column, ValueColumn) else None)
            for column in declared
        ]
        self._required = [column.name for column in declared if column.required]

    def decode(self, fields: Sequence[ArrowColumn]) -> DecodedBlock:
        """Decode a block. fields: of each declared column the texts of its fields."""
        mismatches = _too_large(fields)

        def report(index: int, path: str, need: str) -> None:
            mismatches.setdefault(index, f"the line does not fit the declared columns: expected {need}, at `{path}`")

        for name, texts in zip(self.names, fields, strict=True):
            for index in _places(pc.match_substring(texts, _REPLACED)):
                mismatches.setdefault(index, f"the line is not UTF-8 text, at `{name}`")
        columns = [
            build(texts, name, report) for name, texts, build in zip(self.names, fields, self._builders, strict=True)
        ]
        absent: dict[int, list[str]] = {}
        for name in self._required:
            for index in _places(columns[self.names.index(name)].is_null()):
                absent.setdefault(index, []).append(name)
        for index, lacking in absent.items():
            mismatches.setdefault(index, f"the line lacks {', '.join(lacking)}")
        return DecodedBlock(columns=columns, rejections=mismatches)


def header_places(header: Sequence[str | None], declared: Sequence[str]) -> tuple[int, ...] | str:
    """Where each declared column is in the lines of a file, or why the file is refused.

    Parameters
    ----------
    header: the fields of the file's first line. declared: the names of the columns.
    """
    given = [
        (name or "").strip("\N{ZERO WIDTH NO-BREAK SPACE}") if index == 0 else name or ""
        for index, name in enumerate(header)
    ]
    problems = [
        *(f"lacks {name}" for name in declared if name not in given),
        *(f"has {name or 'a column without a name'}, which is not declared" for name in given if name not in declared),
        *(f"has {name} twice" for name in dict.fromkeys(given) if given.count(name) > 1),
    ]
    if problems:
        return f"the first line of the file {', '.join(problems)}"
    return tuple(given.index(name) for name in declared)


def split_line(text: str) -> list[str]:
    """The fields of one line, whatever is in it: Python's own reader fails on a lone carriage return and on a field of
    more than 131,072 characters."""
    fields, found = [], _FIELD.match(text) if text else None
    while found is not None:
        quoted, rest = found["quoted"], found["rest"]
        fields.append(rest if quoted is None else quoted.replace('""', '"') + rest)
        found = _FIELD.match(text, found.end()) if found["comma"] else None
    return fields


def lines_of(fields: Sequence[ArrowColumn]) -> ArrowColumn:
    """Lines with these fields, as texts. Null is an empty field, and an empty text is one in quotes.

    Parameters
    ----------
    fields: of each column the texts of its fields.
    """
    lines: ArrowColumn = pc.binary_join_element_wise(*(_written(texts) for texts in fields), ",")
    return lines


def _written(texts: Any) -> Any:
    """Texts as fields of lines, in quotes where they have to be."""
    empty: Any = pa.scalar("")
    is_special: Any = pc.or_(pc.equal(texts, empty), pc.match_substring_regex(texts, r'[",\r\n]'))
    quoted: Any = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    return pc.fill_null(pc.if_else(is_special, quoted, texts), "")


def _too_large(fields: Sequence[ArrowColumn]) -> dict[int, str]:
    """Why lines are rejected that are too large; such as all that follows a quotation mark which nothing closes."""
    if sum(texts.nbytes for texts in fields) <= LARGEST_VALUE_BYTES:
        return {}
    sizes: Any = pa.repeat(pa.scalar(0, pa.int64()), len(fields[0]))
    each: Any
    for each in fields:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(each), 0))
    return {
        index: f"the fields of the line have {sizes[index]} bytes; at most {LARGEST_VALUE_BYTES} are decoded"
        for index in _places(pc.greater(sizes, pa.scalar(LARGEST_VALUE_BYTES)))
    }


def _places(are_found: Any) -> list[int]:
    """The indexes of the values that are true."""
    if not pc.any(are_found).as_py():
        return []
    return [index for index, found in enumerate(are_found.to_pylist()) if found]
