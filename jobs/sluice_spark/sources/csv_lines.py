"""Lines of csv files with the result of decoding each. The columns of a file are those that its first line names.

Spark splits a file into fields and reads it with one task, so that the first row of a file is its first line. What it
calls malformed is a line with more or fewer fields than there are columns: each line of a file that has other columns
than the declared ones. Those are split here.

A line comes back without its fields and, unless something is said of it, without its text and the name of its file:
copying them from row to row costs more than decoding them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from sluice.declarations.source_declarations import FilesSource
from sluice.declarations.value_declaration import Column
from sluice.record_values.arrow_columns import DecodedBlock
from sluice.record_values.block_facts import BlockFacts, WrittenAs, written_by_header
from sluice.record_values.csv_decoding import (
    CsvBlockDecoder,
    CsvHeader,
    header_names,
    lines_of,
    read_header,
    split_line,
)
from sluice.record_values.rejection import Rejection, RejectionKind
from sluice_spark.sources.value_decoding import (
    at_first,
    decoded_struct,
    facts_column,
    kept_numbers,
    rejection_column,
    task_number,
)

UNFIT = "_sluice_unfit"
"""The column in which Spark returns a line that has more or fewer fields than there are columns."""

_TEXT, _FILE = "value", "file"

_NO_FIELD = "\x00 Spark replaces what is equal to this text by null \x00"
"""No field is this text. A text of one character, however rare, could be a field."""

CSV_OPTIONS = {
    "header": "false",
    "multiLine": "true",
    "quote": '"',
    "escape": '"',
    "charToEscapeQuoteEscaping": '"',  # the parser's default is NUL, which it then drops from fields
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": UNFIT,
    "nullValue": _NO_FIELD,  # only an empty field without quotation marks is null
    "emptyValue": "",
}
"""How Spark splits lines into fields: as RFC 4180 says. A file is read by one task, whatever its size."""


def csv_schema(columns: Sequence[Column]) -> StructType:
    """The fields of a line, as many as there are columns, and the text of a line that has more or fewer."""
    fields = [StructField(_field(index), StringType()) for index in range(len(columns))]
    return StructType([*fields, StructField(UNFIT, StringType())])


def decoded_csv(rows: DataFrame, source: FilesSource, *, value: str, is_whole: bool) -> DataFrame:
    """Lines as records: a text, a file, and a struct of columns named `value`.

    Parameters
    ----------
    is_whole: whether each record has its text and its file. Otherwise a rejected one has both, and of the others the
        first of a file in each block has its file, so that each file with a good record is among them.
    """
    struct = decoded_struct(source.columns)
    fields = [StructField(_TEXT, BinaryType()), StructField(_FILE, StringType()), StructField(value, struct)]

    def decode(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lines, number = _Lines(source, to_arrow_type(struct), is_whole=is_whole), task_number()
        for block in blocks:
            decoded = lines.decoded(block.columns, first=number)
            yield pa.RecordBatch.from_arrays(decoded, names=[field.name for field in fields])
            number += block.num_rows

    texts = [fn.col(_field(index)) for index in range(len(source.columns))]
    # The path alone, from here on: Spark's column of metadata has six fields, which every row would carry to the end.
    lines = rows.select(*texts, UNFIT, fn.col("_metadata.file_path").alias(_FILE))
    return lines.mapInArrow(decode, StructType(fields))


def _field(index: int) -> str:
    return f"_sluice_field_{index}"


class _Lines:
    """Decodes the lines of one file after the other; remembers where the columns of the current file are.

    Parameters
    ----------
    kind: the struct of a decoded line. is_whole: as of `decoded_csv`.
    """

    def __init__(self, source: FilesSource, kind: pa.DataType, *, is_whole: bool) -> None:
        self._decoder = CsvBlockDecoder(source.columns)
        self._has_header = source.header
        self._rejects_undeclared = source.on_unknown_field != "ignore"
        self._kind = kind
        self._is_whole = is_whole
        self._file: str | None = None
        names = self._decoder.names
        self._given: list[str] | None = None
        self._header: CsvHeader | Rejection = CsvHeader(width=len(names), places=tuple(range(len(names))))

    def decoded(self, columns: Sequence[Any], *, first: int) -> list[Any]:
        """The texts, the files and the structs of the lines of a block, without headers.

        Parameters
        ----------
        columns: the fields, the whole lines, their files. first: the number of the first line.
        """
        runs: Any = pc.call_function("run_end_encode", [columns[-1]])
        ends = runs.run_ends.to_pylist()
        parts: list[tuple[Any, Any, Any]] = []
        for begin, end, file in zip([0, *ends], ends, runs.values.to_pylist(), strict=False):
            part, number = [column.slice(begin, end - begin) for column in columns[:-1]], first + begin
            if self._has_header and file != self._file:
                self._header = self._header_in(part)
                part, number = [column.slice(1) for column in part], number + 1
            self._file = file
            parts.append(self._decoded(part[:-1], part[-1], file, first=number))
        if len(parts) == 1:  # what is concatenated is copied
            return [*parts[0]]
        empty = (pa.array([], pa.binary()), pa.array([], pa.string()), pa.array([], self._kind))
        return [pa.concat_arrays(list(alike)) for alike in zip(empty, *parts, strict=True)]

    def _header_in(self, part: Sequence[Any]) -> CsvHeader | Rejection:
        whole = part[-1][0].as_py()
        header = header_names(split_line(whole) if whole is not None else [text[0].as_py() for text in part[:-1]])
        decoder = self._decoder
        is_header = any(name in decoder.names for name in header)  # otherwise it may be a line of data
        self._given = header if is_header else None
        return read_header(
            header, decoder.names, required=decoder.required, rejects_undeclared=self._rejects_undeclared
        )

    def _decoded(self, texts: list[Any], unfit: Any, file: str, *, first: int) -> tuple[Any, Any, Any]:
        block, length = self._block(texts, unfit), len(unfit)
        numbers, whole = pa.nulls(length, pa.int64()), pa.nulls(length, pa.binary())
        if block.rejections or self._is_whole:
            whole = _whole(texts, unfit)
        if block.rejections:
            numbers = pa.array(kept_numbers(whole.to_pylist(), block.rejections, first=first), pa.int64())
        written_as: WrittenAs = {}
        if self._given is not None:
            written_as = written_by_header(self._given, values=length, rejected=len(block.rejections))
        facts = facts_column(BlockFacts(undeclared=block.undeclared, written_as=written_as), length)
        rejections = rejection_column(block.rejections, length)
        files = pa.repeat(pa.scalar(file), length) if self._is_whole else _named(file, block.rejections, length)
        return whole, files, _struct([*block.columns, rejections, numbers, facts], self._kind)

    def _block(self, texts: list[Any], unfit: Any) -> DecodedBlock:
        length, header = len(unfit), self._header
        if isinstance(header, Rejection):
            refused = dict.fromkeys(range(length), header)
            return DecodedBlock(columns=[pa.nulls(length)] * len(texts), rejections=refused)
        if header.width == len(texts):
            fields = texts
            unfit_lines = unfit.to_pylist() if unfit.null_count < length else ()
            widths = {index: len(split_line(line)) for index, line in enumerate(unfit_lines) if line is not None}
        else:
            fields, widths = _split(unfit, header.width, as_read=len(texts))
        absent = pa.nulls(length, pa.string())
        block = self._decoder.decode([absent if place is None else fields[place] for place in header.places])
        wrong = {index: _of_another_width(width, header.width) for index, width in widths.items()}
        counts = Counter(dict.fromkeys(header.undeclared, length - len(wrong)))
        return DecodedBlock(columns=block.columns, rejections={**block.rejections, **wrong}, undeclared=+counts)


def _split(unfit: Any, width: int, *, as_read: int) -> tuple[list[Any], dict[int, int]]:
    """The fields of lines that Spark has not split, by column, and how many each line has that is not so wide.

    Parameters
    ----------
    unfit: the lines; none for one with as many fields as Spark expects, which are as_read.
    """
    lines: list[list[str | None]] = []
    widths: dict[int, int] = {}
    for index, text in enumerate(unfit.to_pylist()):
        fields = split_line(text) if text is not None else None
        if fields is None or len(fields) != width:
            widths[index] = as_read if fields is None else len(fields)
            fields = [None] * width
        lines.append(fields)
    columns = list(zip(*lines, strict=True)) or [()] * width
    return [pa.array(column, pa.string()) for column in columns], widths


def _of_another_width(fields: int, width: int) -> Rejection:
    return Rejection(
        kind=RejectionKind.MISMATCH, detail=f"the line has {fields} fields, not {width}", quotes_data=False
    )


def _named(file: str, rejected: Collection[int], length: int) -> Any:
    """The file of some lines at those that are rejected and at the first other one; null at all others."""
    if not rejected:
        return at_first(file, length)
    first_good = next((index for index in range(length) if index not in rejected), None)
    named = [index in rejected or index == first_good for index in range(length)]
    return pc.if_else(pa.array(named), pa.scalar(file), pa.scalar(None, pa.string()))


def _whole(texts: Sequence[Any], unfit: Any) -> Any:
    """The lines as bytes: as they were sent if they do not fit, otherwise with as few quotation marks as possible."""
    return pc.coalesce(unfit, lines_of(texts)).cast(pa.binary())


def _struct(columns: Sequence[Any], kind: pa.DataType) -> Any:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    same = [one if one.type == to.type else one.cast(to.type) for one, to in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(same, fields=fields)
