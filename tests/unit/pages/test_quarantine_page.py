"""What a page shows of a quarantined record: from which input, why, and its value with masks; all of it bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedTable
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.pages.quarantine_page import LONGEST_REASON, LONGEST_VALUE, QuarantineSample, record_masks_of, sample_of
from sluice.record_values.rejection import Rejection, RejectionKind, lacking, mismatch, rejection_row

LACKING = lacking(["id"])
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
EMAIL_COLUMNS = [{"name": "id", "type": "long"}, {"name": "email", "type": "string"}]
ORDERS = {
    "kafka": {"connection": "events", "topics": ["orders"], "value": {"format": "json", "columns": EMAIL_COLUMNS}}
}
CLICKS = {"kafka": {"connection": "events", "topic_pattern": "clicks-.*"}}
LANDED = {"connection": "landing", "path": "in", "columns": EMAIL_COLUMNS, "on_malformed": "quarantine"}
CSV = {"files": LANDED | {"format": "csv", "header": False}}
CSV_WITH_HEADER = {"files": LANDED | {"format": "csv"}}
KINESIS = {"kinesis": {"connection": "records", "stream": "orders"}}


def declared(*masked: str, **inputs: Any) -> StreamDeclaration:
    """A stream with a quarantine; of one input with JSON values when none is given."""
    return StreamDeclaration.model_validate(
        {
            "stream": "typed_orders",
            "description": "typed orders",
            "owner": "shop",
            "mode": "continuous",
            "trigger": {"processing_time": "2 seconds"},
            "inputs": {name: {"stream": source} for name, source in (inputs or {"orders": ORDERS}).items()},
            "transformation": {"python": "orders.py:orders"},
            "outputs": {"main": {"iceberg": {"table": "typed.orders"}}},
            "quarantine": True,
            "masked_columns": masked,
        }
    )


def sample(
    declaration: StreamDeclaration,
    payload: str | None,
    *,
    why: Rejection | str = LACKING,
    position: str | None = '{"topic":"orders","partition":0,"offset":42}',
    **more: Any,
) -> QuarantineSample:
    """What is shown of a record. why: a sentence of a transformation, or of a row that is older than `quotes_data`."""
    reason = {"reason": why} if isinstance(why, str) else rejection_row(why)
    row = {"generation": 2, "batch": 17, "position": position, "payload": payload, **reason, **more}
    masks = record_masks_of(declaration, {})
    return sample_of({"stream": "typed_orders", "refused_at": NOON, **row}, declaration, masks)


def test_a_record_is_shown_with_its_batch_input_position_reason_and_path() -> None:
    shown = sample(declared(), '{"id": "x", "email": "ann@x.org"}', why=mismatch("$.id", "int, got str"))

    assert shown == QuarantineSample(
        refused_at=NOON,
        batch="2:17",
        source="orders",
        reason="the value does not fit the declared columns: expected int, got str, at `$.id`",
        path="$.id",
        position="topic orders, partition 0, offset 42",
        value='{"id": "x", "email": "ann@x.org"}',
    )


def test_a_masked_column_is_in_neither_value_nor_position() -> None:
    payload = '{"id": "x", "email": "Ann@x.org"}'

    shown = sample(declared("email"), payload, position='{"email":"Ann@x.org","at":1}')

    assert shown.value == '{"id": "••• (text)", "email": "••• (text)"}'
    assert shown.position == "email ••• (text), at ••• (number)"


@pytest.mark.parametrize("payload", ['{"email": "ann@x.org"}', '{"email": "ann@x.org', "0x00FF"])
def test_where_columns_are_masked_a_reason_stays_that_repeats_no_data(payload: str) -> None:
    shown = sample(declared("email"), payload, why=mismatch("$.id", "int, got str"))

    assert shown.reason == "the value does not fit the declared columns: expected int, got str, at `$.id`"
    assert shown.path == "$.id"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (RejectionKind.INVALID_AVRO, "the value is not valid Avro of its schema, at `a.b`"),
        (RejectionKind.EVENT_TIME_AHEAD, "the event time is too far ahead of the clock, at `a.b`"),
        (RejectionKind.REPEATED_KEY, "the value has a key twice, at `a.b`"),
    ],
)
def test_of_a_reason_that_repeats_data_the_kind_and_the_path_stay(kind: RejectionKind, reason: str) -> None:
    why = Rejection(kind=kind, path="a.b", detail="ann@x.org", quotes_data=True)

    shown = sample(declared("email"), '{"id": 1}', why=why)

    assert (shown.reason, shown.path) == (reason, "a.b")
    assert sample(declared(), '{"id": 1}', why=why).reason == why.sentence


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"kind": None, "path": None, "quotes_data": None},
        {"kind": "mismatch", "path": "ann@x.org", "quotes_data": None},
        {"kind": "bad address", "path": "ann@x.org", "quotes_data": True},
    ],
)
def test_a_reason_is_hidden_of_which_it_is_unknown_whether_it_repeats_data(more: dict[str, Any]) -> None:
    shown = sample(declared("email"), '{"id": 1}', why="ann@x.org is no address", **more)

    assert (shown.reason, shown.path) == ("hidden: it may repeat masked data", "")


def test_a_path_that_is_no_path_is_hidden_where_the_reason_repeats_data() -> None:
    shown = sample(declared("email"), "{}", why="x", kind="mismatch", path="ann@x.org", quotes_data=True)

    assert (shown.reason, shown.path) == ("the value does not fit the declared columns", "")


@pytest.mark.parametrize(
    "position",
    ['{"topic":"ann@x.org","partition":0,"offset":1}', '{"topic":"orders","partition":"ann@x.org","offset":1}'],
)
def test_a_position_that_sluice_does_not_write_is_masked(position: str) -> None:
    assert "ann@x.org" not in sample(declared("email"), "{}", position=position).position


def test_a_transformation_may_say_that_its_reason_repeats_no_data() -> None:
    more: dict[str, Any] = {"kind": "bad_address", "path": "email", "quotes_data": False}

    shown = sample(declared("email"), '{"id": 1}', why="the address has no country", **more)

    assert (shown.reason, shown.path) == ("the address has no country", "email")


def test_without_masks_everything_is_shown_also_what_cannot_be_parsed() -> None:
    shown = sample(declared(), '{"email": "ann@x.org', why="ann@x.org is no address")

    assert (shown.value, shown.reason) == ('{"email": "ann@x.org', "ann@x.org is no address")


def test_binary_values_are_hidden_where_columns_are_masked() -> None:
    assert sample(declared(), "0x00FF").value == "0x00FF"
    assert sample(declared("email"), "0x00FF").value == ""


def test_a_record_without_a_value_has_none() -> None:
    assert sample(declared("email"), None).value is None
    assert sample(declared(), None).value is None


def test_texts_are_bounded_and_hold_neither_secrets_nor_control_characters() -> None:
    shown = sample(declared(), "x" * 5_000, why="y" * 5_000, position="z" * 5_000)

    assert [len(text) for text in (shown.value or "", shown.reason, shown.position)] == [
        LONGEST_VALUE,
        LONGEST_REASON,
        LONGEST_REASON,
    ]
    assert sample(declared(), '{"password": "tiger"}').value == '{"password": ***}'
    assert sample(declared(), "a\x1b[31mb\u202ec").value == r"a\x1b[31mb\u202ec"


FROM_LINES = '{"file":"s3://lake/in/a.csv"}'
OF_FILE = {"position": FROM_LINES}


def test_a_line_is_masked_by_the_place_of_its_fields() -> None:
    shown = sample(declared("email", lines=CSV), ",ann@x.org", **OF_FILE)

    assert (shown.value, shown.position) == (",•••", "file s3://lake/in/a.csv")
    assert sample(declared("email", lines=CSV), "ann@x.org,7", **OF_FILE).value == "•••,•••"  # swapped


def test_a_line_of_a_file_that_names_its_own_columns_is_hidden() -> None:
    shown = sample(declared("email", lines=CSV_WITH_HEADER), ",ann@x.org", **OF_FILE)

    assert shown.value == ""
    assert "first line" in shown.hidden_because


def test_a_line_that_looks_like_json_is_still_a_line() -> None:
    assert sample(declared("email", lines=CSV_WITH_HEADER), '{"x": "ann@x.org"}', **OF_FILE).value == ""
    unknown = declared("email", orders=ORDERS, lines=CSV_WITH_HEADER)
    assert sample(unknown, '{"x": "ann@x.org"}', position=None).value == ""


@pytest.mark.parametrize(
    ("position", "source"),
    [
        ('{"topic":"orders","partition":0,"offset":1}', "orders"),
        ('{"topic":"clicks-eu","partition":0,"offset":1}', "clicks"),
        ('{"topic":"other","partition":0,"offset":1}', ""),
        ('{"stream":"orders","shard":"s","sequence_number":"1"}', "records"),
        (FROM_LINES, "lines"),
        ('{"id":1}', ""),
        ("[1]", ""),
        ("not JSON", ""),
        (None, ""),
    ],
)
def test_of_several_inputs_the_position_says_which(position: str | None, source: str) -> None:
    inputs = declared(orders=ORDERS, clicks=CLICKS, records=KINESIS, lines=CSV)

    assert sample(inputs, "x", position=position).source == source


def test_a_position_that_is_no_json_is_hidden_where_columns_are_masked() -> None:
    assert sample(declared(), "x", position="row of ann@x.org").position == "row of ann@x.org"
    assert sample(declared("email"), "x", position="row of ann@x.org").position == "hidden"


TABLE = """\
table: bronze.records
description: records
owner: shop
columns:
  - {name: value, type: binary}
  - {name: id, type: long}
"""
KAFKA: dict[str, Any] = {"connection": "events", "topics": ["orders"]}
COLUMNS = [{"name": "at", "type": "timestamptz", "unit": "seconds"}, {"name": "id", "type": "long"}]


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, LoadedTable]:
    """A declared table with bytes in it."""
    (tmp_path / "bronze.records.table.yaml").write_text(TABLE)
    return dict(load_declarations(tmp_path).tables)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ({"kafka": KAFKA}, []),
        ({"kafka": KAFKA | {"value": {"format": "json", "columns": COLUMNS}}}, ["at", "id"]),
        ({"kinesis": {"connection": "records", "stream": "s"}}, []),
        ({"iceberg": {"table": "bronze.records"}}, ["value", "id"]),
        ({"iceberg": {"table": "bronze.unknown"}}, []),
    ],
    ids=["records as they come", "decoded", "Kinesis", "a table", "a table without a declaration"],
)
def test_the_columns_of_an_input_are_those_that_are_declared(
    tables: dict[str, LoadedTable], source: dict[str, Any], names: list[str]
) -> None:
    masks = record_masks_of(declared("email", rows=source), tables)

    assert masks is not None
    assert masks.masked == ("email",)
    assert [name for name, _ in masks.columns_of("rows").fields] == names
    assert masks.columns_of("another").fields == masks.columns_of("").fields == ()


def test_a_stream_that_declares_no_masks_has_none(tables: dict[str, LoadedTable]) -> None:
    assert record_masks_of(declared(rows={"iceberg": {"table": "bronze.records"}}), tables) is None
