"""Whatever is sent, a continuous stream, an incremental one and a preview make the same of it, in every format.

Every test run decodes a topic in a stream and in its preview (`test_tombstones.py`), lines of csv
(`test_malformed_lines.py`), and every format without Spark (`unit/record_values`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.fixtures.workshop import Workshop
from tests.spark.decoding.test_decoding import CONTINUOUS, sent
from tests.unit.record_values import test_binary_property as binary
from tests.unit.record_values import test_csv_values as csv_table
from tests.unit.record_values import test_json_values as table
from tests.unit.record_values.test_avro_values import written as avro
from tests.unit.record_values.test_json_columnar import ANY_KIND, ANY_SENT
from tests.unit.record_values.test_protobuf_values import written as protobuf

from sluice.declarations.protobuf_schemas import compiled, message_of
from sluice.record_values.csv_decoding import split_line
from sluice.settings import FilesConnection
from sluice_spark.query.stream_preview import preview

_Drawn = TypeVar("_Drawn")
_OF_ITS_COLUMN = ("struct<x: int>", 'null, "x": {}')
"""A key twice only where the column has the name `x`."""

EXACT = [(kind, sent) for kind, sent, _ in table.EXACT]
REJECTED = [(kind, sent, reason) for kind, sent, reason in table.REJECTED if (kind, sent) != _OF_ITS_COLUMN]
WHOLE = [(value, reason) for value, reason in table.WHOLE if len(value or b"") < 1_000_000]  # as a broker takes them


def drawn(values: st.SearchStrategy[_Drawn], number: int) -> list[_Drawn]:
    """Random values, other ones in each run."""
    found: list[_Drawn] = []

    @settings(
        max_examples=number,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(values)
    def draw(value: _Drawn) -> None:
        found.append(value)

    draw()
    return found


class Found:
    """What the three ways made of the records of a source, which must be the same.

    rows: the text of all columns, by the number of the record. refused: the reasons, by number.

    Parameters
    ----------
    names: of the columns. number: the number of a record, in SQL. number_of: that of a row in the quarantine.
    """

    def __init__(
        self,
        workshop: Workshop,
        source: Mapping[str, Any],
        names: Sequence[str],
        *,
        number: str,
        number_of: Callable[[Mapping[str, Any]], int],
    ) -> None:
        shown = f"hex(CAST(struct({', '.join(f'`{name}`' for name in names)}) AS STRING))"  # bytes are no text
        sql = f"SELECT {number} AS number, {shown} AS content FROM orders"  # noqa: S608  # names of this module
        streams = [_declare(workshop, source, sql, how) for how in ({}, CONTINUOUS)]
        workshop.run(streams[0])
        workshop.run(streams[1], stop_after_batches=1)
        seen = preview(workshop.spark, workshop.stream(streams[0]), workshop.settings, sample=9999, shown=9999)
        incremental, continuous = (_rows(workshop.rows(stream)) for stream in streams)
        refused, refused_too = (_refused(workshop.rows(f"quarantine.{stream}"), number_of) for stream in streams)
        assert incremental == continuous == _rows(seen.outputs[0].first)
        assert refused == refused_too
        assert seen.refused == Counter(refused.values())
        assert not refused.keys() & incremental.keys()
        self.rows, self.refused = incremental, refused


def _declare(workshop: Workshop, source: Mapping[str, Any], sql: str, how: Mapping[str, Any]) -> str:
    stream = f"a{uuid4().hex[:12]}"
    target = workshop.declare_table(stream, {"number": "long", "content": "string"})
    workshop.declare_stream(
        stream,
        sql=sql,
        inputs={"orders": {"stream": dict(source)}},
        outputs={"main": {"iceberg": {"table": target}}},
        quarantine=True,
        **how,
    )
    return stream


def _rows(rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    found = {row["number"]: row["content"] for row in rows}
    assert len(found) == len(rows)
    return found


def _refused(rows: Sequence[Mapping[str, Any]], number_of: Callable[[Mapping[str, Any]], int]) -> dict[int, str]:
    found = {number_of(row): row["reason"] for row in rows}
    assert len(found) == len(rows)
    return found


def found_in_topic(workshop: Workshop, topic: str, value: Mapping[str, Any], names: Sequence[str]) -> Found:
    """What becomes of the values of a topic, by their offsets."""
    source = {"connection": "flights_kafka", "topics": [topic], "value": dict(value)}
    return Found(
        workshop,
        {"kafka": source},
        names,
        number="record.offset",
        number_of=lambda row: json.loads(row["position"])["offset"],
    )


@pytest.mark.full  # every run: the decoder of each format without Spark (`unit/record_values`)
def test_json_of_the_table_and_at_random(workshop: Workshop) -> None:
    exact = [*EXACT, *((kind, encode(one)) for kind, encode, one in _encoded())]
    other = drawn(st.tuples(ANY_KIND, ANY_SENT), 200)
    kinds = list(dict.fromkeys(kind for kind, *_ in (*exact, *REJECTED, *other)))
    names = {kind: f"c{number}" for number, kind in enumerate(kinds)}

    def value(kind: str, text: str) -> bytes:
        return f'{{"{names[kind]}": {text}}}'.encode()

    rejected = [(value(kind, text), reason.replace("$.x", f"$.{names[kind]}", 1)) for kind, text, reason in REJECTED]
    rejected += [(text, reason) for text, reason in WHOLE if text is not None]
    topic = sent(
        workshop, [*(value(*one) for one in exact), *(text for text, _ in rejected), *(value(*one) for one in other)]
    )

    found = found_in_topic(
        workshop,
        topic,
        {"format": "json", "columns": [_column(names[kind], kind) for kind in kinds]},
        list(names.values()),
    )

    assert len(found.rows) + len(found.refused) == len(exact) + len(rejected) + len(other)
    assert not [exact[offset] for offset in found.refused if offset < len(exact)]
    for offset, (text, reason) in enumerate(rejected, len(exact)):
        assert reason in found.refused.get(offset, f"{text!r} was not rejected")


def _encoded() -> list[tuple[str, Callable[[Any], str], Any]]:
    """Random values of every type, which are all valid."""
    return [(kind, encode, one) for kind, (values, encode) in table.VALUES.items() for one in drawn(values, 8)]


def _column(name: str, text: str) -> dict[str, str]:
    kind, _, unit = text.partition(" unit ")
    return {"name": name, "type": kind, **({"unit": unit} if unit else {})}


@pytest.mark.full  # as above
@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_bytes_at_random(workshop: Workshop, form: str) -> None:
    if form == "avro":
        file, text, write, rows = "every.avsc", binary.EVERY_AVRO, avro, drawn(binary.AVRO_FIELDS, 40)
        names = [field["name"] for field in json.loads(text)["fields"]]
    else:
        file, text, write, rows = "every.proto", binary.EVERY_PROTOBUF, protobuf, drawn(binary.PROTOBUF_FIELDS, 40)
        names = [field.name for field in message_of(compiled(text), "shop.Order").fields]
    (workshop.folder / file).write_text(text)
    valid = [write(text, row) for row in rows]
    damaged = [drawn(binary.damaged(value), 1)[0] for value in valid]
    value = {"format": form, "schema_file": file, **({"message": "shop.Order"} if form == "protobuf" else {})}

    topic = sent(workshop, [*valid, *damaged, *drawn(st.binary(max_size=40), 20)])
    found = found_in_topic(workshop, topic, value, names)

    assert len(found.rows) + len(found.refused) == 2 * len(valid) + 20
    assert not [rows[offset] for offset in found.refused if offset < len(valid)]


@pytest.mark.full  # every run: lines of csv (`test_malformed_lines.py`), and `test_csv_values.py` without Spark
def test_csv_of_the_table_and_at_random(workshop: Workshop, tmp_path: Path) -> None:
    kinds = [kind for kind in csv_table.KINDS if _is_field(kind)]
    exact = [(kind, text) for kind, text, _ in csv_table.EXACT if _is_field(kind)]
    exact += [(kind, csv_table.field_of(kind, one)) for kind in kinds for one in drawn(csv_table.values(kind), 8)]
    rejected = [(kind, text, reason) for kind, text, reason in csv_table.REJECTED if _is_field(kind)]
    other = drawn(st.tuples(st.sampled_from(kinds), st.text(max_size=20)), 200)
    other += [("string", text) for text in drawn(st.text(alphabet='a", \r\n\x00', max_size=9), 100)]
    lines = [*exact, *((kind, text) for kind, text, _ in rejected), *other]
    names = {kind: f"c{number}" for number, kind in enumerate(dict.fromkeys(kind for kind, _ in lines))}
    unfit = [f"{len(lines)},tw\ro\r\n", f"{len(lines) + 1},{'x' * 200_000}\r\n"]
    _write_files(tmp_path / "lines", lines, names, unfit)
    connections = {**workshop.settings.connections, "here": FilesConnection(kind="files", root=tmp_path.as_uri())}
    workshop = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    columns = [_column("id", "long"), *(_column(name, kind) for kind, name in names.items())]

    source = {"connection": "here", "path": "lines", "format": "csv", "columns": columns, "on_malformed": "quarantine"}

    found = Found(
        workshop,
        {"files": source},
        list(names.values()),
        number="id",
        number_of=lambda row: int(split_line(row["payload"])[0] or ""),
    )

    assert len(found.rows) + len(found.refused) == len(lines) + len(unfit)
    assert {found.refused[len(lines) + index] for index in range(2)} == {
        f"the value does not fit the declared columns: the line has 2 fields, not {len(columns)}"
    }
    assert not [exact[number] for number in found.refused if number < len(exact)]
    for number, (kind, text) in enumerate(lines):
        if kind == "string" and number in found.rows:
            became = "null" if text is None else text.replace("\r\n", "\n")  # as the guide of inputs says
            shown = ", ".join(became if kind == each else "null" for each in names)
            assert bytes.fromhex(found.rows[number]).decode() == f"{{{shown}}}"
    for number, (kind, text, reason) in enumerate(rejected, len(exact)):
        assert reason.replace("`x`", f"`{names[kind]}`") in found.refused.get(number, f"{text!r} was not rejected")


def _is_field(kind: str) -> bool:
    """Whether a column of a type may be declared for csv: bytes may not."""
    return not kind.startswith(("binary", "fixed"))


def _write_files(
    folder: Path, lines: Sequence[tuple[str, str | None]], names: Mapping[str, str], unfit: Sequence[str]
) -> None:
    """Lines with their numbers and one filled field each, in two files with the columns in different orders."""
    folder.mkdir()
    kinds = list(names)
    for part, order in enumerate((kinds, kinds[::-1])):
        written = [",".join(["id", *(names[kind] for kind in order)])]
        for number, (kind, text) in enumerate(lines):
            if number % 2 == part:
                written.append(",".join([str(number), *(_quoted(text if kind == each else None) for each in order)]))
        (folder / f"{part}.csv").write_text("".join(f"{line}\r\n" for line in written) + unfit[part], newline="")


def _quoted(text: str | None) -> str:
    """A field as RFC 4180 writes it; null is nothing at all."""
    return "" if text is None else '"' + text.replace('"', '""') + '"'
