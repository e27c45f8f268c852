"""Decodes blocks of csv lines into Arrow columns. A field becomes exactly what it says, or its line is rejected.

Spark's reader has split the lines into fields; quotes and line breaks within them are taken as RFC 4180 says. An
empty field is null, and an empty field in quotes is an empty text.

Source: https://www.rfc-editor.org/rfc/rfc4180
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.declarations.value_declaration import Column, ValueColumn, as_sent
from sluice.record_values.arrow_columns import Column as ArrowColumn
from sluice.record_values.arrow_columns import DecodedBlock, lacking_values, text_builder
from sluice.record_values.block_facts import undeclared_rejection
from sluice.record_values.rejection import (
    LARGEST_VALUE_BYTES,
    Rejection,
    RejectionKind,
    mismatch,
    too_large,
)

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
        declared = as_sent(tuple(columns))
        self.names = tuple(column.name for column in declared)
        self._builders = [
            text_builder(column.column_type, unit=column.unit if isinstance(column, ValueColumn) else None)
            for column in declared
        ]
        self.required = [column.name for column in declared if column.required]

    def decode(self, fields: Sequence[ArrowColumn]) -> DecodedBlock:
        """Decode a block. fields: of each declared column the texts of its fields."""
        mismatches = _too_large(fields)

        def report(index: int, path: str, need: str) -> None:
            mismatches.setdefault(index, mismatch(path, need))

        for name, texts in zip(self.names, fields, strict=True):
            for index in _places(pc.match_substring(texts, _REPLACED)):
                mismatches.setdefault(index, Rejection(kind=RejectionKind.NOT_TEXT, path=name, quotes_data=False))
        columns = [
            build(texts, name, report) for name, texts, build in zip(self.names, fields, self._builders, strict=True)
        ]
        lacking = lacking_values(dict(zip(self.names, columns, strict=True)), self.required)
        return DecodedBlock(columns=columns, rejections=lacking | mismatches)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvHeader:
    """What the first line of a file says.

    width: how many fields a line of the file has.
    places: where each declared column is; none for one that the file does not have.
    undeclared: the columns of the file that are not declared.
    """

    width: int
    places: tuple[int | None, ...]
    undeclared: tuple[str, ...] = ()


def header_names(header: Sequence[str | None]) -> list[str]:
    """The names in the first line of a file, without a byte order mark. header: the fields of the line."""
    return [
        (name or "").strip("\N{ZERO WIDTH NO-BREAK SPACE}") if index == 0 else name or ""
        for index, name in enumerate(header)
    ]


def read_header(
    header: Sequence[str | None], declared: Sequence[str], *, required: Collection[str], rejects_undeclared: bool
) -> CsvHeader | Rejection:
    """Where each declared column is in the lines of a file, or why the file is refused. A column that is not required
    may be absent, as a field of json may, so that old and new files of a folder are read together.

    Parameters
    ----------
    header: the fields of the file's first line. declared: the names of the columns. required: those that it must have.
    rejects_undeclared: whether another column refuses the file; otherwise it is left out.
    """
    given = header_names(header)
    has_one, lower = any(name in given for name in declared), {name.lower() for name in given}
    problems = [
        *(
            f"lacks {name}"
            for name in declared
            if name not in given and (name in required or not has_one or name.lower() in lower)
        ),
        *(f"has {name} twice" for name in declared if given.count(name) > 1),
    ]
    undeclared = tuple(dict.fromkeys(name or "a column without a name" for name in given if name not in declared))
    others = [f"has {name}, which is not declared" for name in undeclared]
    if problems:
        detail = f"it {', '.join([*problems, *others])}"
        return Rejection(kind=RejectionKind.OTHER_HEADER, detail=detail, quotes_data=True)
    if undeclared and rejects_undeclared:
        return undeclared_rejection(undeclared, are_data=True)
    places = tuple(given.index(name) if name in given else None for name in declared)
    return CsvHeader(width=len(given), places=places, undeclared=undeclared)


def split_line(text: str) -> list[str | None]:
    """The fields of one line, whatever is in it: Python's own reader fails on a lone carriage return and on a field of
    more than 131,072 characters. An empty field is none, one in quotes is an empty text."""
    fields: list[str | None] = []
    found = _FIELD.match(text) if text else None
    while found is not None:
        quoted, rest = found["quoted"], found["rest"]
        fields.append((rest or None) if quoted is None else quoted.replace('""', '"') + rest)
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


def _too_large(fields: Sequence[ArrowColumn]) -> dict[int, Rejection]:
    """Why lines are rejected that are too large; such as all that follows a quotation mark which nothing closes."""
    if sum(texts.nbytes for texts in fields) <= LARGEST_VALUE_BYTES:
        return {}
    sizes: Any = pa.repeat(pa.scalar(0, pa.int64()), len(fields[0]))
    each: Any
    for each in fields:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(each), 0))
    return {
        index: too_large(sizes[index].as_py()) for index in _places(pc.greater(sizes, pa.scalar(LARGEST_VALUE_BYTES)))
    }


def _places(are_found: Any) -> list[int]:
    """The indexes of the values that are true."""
    if not pc.any(are_found).as_py():
        return []
    return [index for index, found in enumerate(are_found.to_pylist()) if found]
