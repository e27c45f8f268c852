"""What a page shows of a quarantined record: from which input, why, and its value with masks; all of it bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.pages.quarantine_samples import LONGEST_REASON, LONGEST_VALUE, QuarantineSample, sample_of
from sluice.pages.record_masks import masked_columns_of

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
    reason: str = "the value lacks id",
    position: str | None = '{"topic":"orders","partition":0,"offset":42}',
) -> QuarantineSample:
    """What is shown of a record."""
    row = {"generation": 2, "batch": 17, "reason": reason, "position": position, "payload": payload}
    masked = masked_columns_of(declaration, {})
    return sample_of({"stream": "typed_orders", "refused_at": NOON, **row}, declaration, masked)


def test_a_record_is_shown_with_its_batch_input_position_reason_and_path() -> None:
    reason = "the value does not fit the declared columns: Expected `int | null`, got `str` - at `$.id`"

    shown = sample(declared(), '{"id": "x", "email": "ann@x.org"}', reason=reason)

    assert shown == QuarantineSample(
        refused_at=NOON,
        batch="2:17",
        source="orders",
        reason=reason,
        path="$.id",
        position="topic orders, partition 0, offset 42",
        value='{"id": "x", "email": "ann@x.org"}',
    )


def test_a_masked_column_is_in_neither_value_nor_reason_nor_position() -> None:
    payload = '{"id": "x", "email": "Ann@x.org"}'

    shown = sample(
        declared("email"), payload, reason="`ann@x.org` is a bad address, of x", position='{"email":"Ann@x.org","at":1}'
    )

    assert shown.value == '{"id": "x", "email": "•••"}'
    assert shown.reason == "`•••` is a bad address, of x"
    assert shown.position == "email •••, at 1"


def test_a_short_masked_text_is_replaced_in_a_reason_only_as_a_word() -> None:
    shown = sample(declared("email"), '{"email": "an"}', reason="an order cannot have an")

    assert shown.reason == "••• order cannot have •••"
    assert sample(declared("email"), '{"email": "an"}', reason="cannot land").reason == "cannot land"


@pytest.mark.parametrize(
    "reason",
    [
        "the record has no value",
        "the value is not UTF-8 text",
        "the value is not JSON: JSON is malformed: invalid character (byte 5)",
        "the value is not JSON: JSON is malformed: expected ',' or '}' (byte 12)",
        "the value is not JSON: Input data was truncated",
        "the value is not JSON: half of a character, a lone surrogate, is no text",
        "the value does not fit the declared columns: Expected `object`, got `str`",
        "the value has 20000000 bytes; at most 16777216 are decoded",
        "the value is not valid Avro of its schema: 3 bytes are left over",
        "id: a value of type str does not fit long",
        "price: a value of type Decimal does not fit decimal(9, 2)",
        "the line has 2 fields, not 3",
        "the line lacks id, email",
        "the line does not fit the declared columns: expected a whole number of 32 bits, at `number`",
        "the line is not UTF-8 text, at `email`",
    ],
)
def test_the_platforms_own_reason_stays_beside_a_hidden_value(reason: str) -> None:
    shown = sample(declared("email"), '{"email": "ann@x.org', reason=reason)

    assert (shown.value, shown.reason) == ("", reason)
    assert "not a JSON object" in shown.hidden_because


@pytest.mark.parametrize(
    "reason",
    [
        "ann@x.org is no address",
        "the value is not JSON: ann@x.org",
        "the value is not valid Avro of its schema: ann@x.org",
        "the first line of the file has ann@x.org, which is not declared",
        "the value lacks id\nann@x.org",
        "the line lacks ann@x.org",
    ],
)
def test_any_other_reason_is_hidden_with_the_value(reason: str) -> None:
    shown = sample(declared("email"), "id=1;email=ann@x.org", reason=reason)

    assert shown.value == ""
    assert "ann" not in shown.reason
    assert shown.reason.startswith("hidden with the value")


def test_a_masked_event_time_is_masked_in_its_reason() -> None:
    reason = "the event time 2030-01-01 00:00:00 of `at` is more than 1 day, 0:00:00 ahead of the clock"

    assert sample(declared("at"), '{"at": 1893456000}', reason=reason).reason == reason.replace(
        "2030-01-01 00:00:00", "•••"
    )
    assert sample(declared("AT"), "{", reason=reason).reason == reason.replace("2030-01-01 00:00:00", "•••")
    assert sample(declared("email"), '{"at": 1893456000}', reason=reason).reason == reason


def test_without_masks_everything_is_shown_also_what_cannot_be_parsed() -> None:
    shown = sample(declared(), '{"email": "ann@x.org', reason="ann@x.org is no address")

    assert (shown.value, shown.reason) == ('{"email": "ann@x.org', "ann@x.org is no address")


def test_binary_values_are_hidden_where_columns_are_masked() -> None:
    assert sample(declared(), "0x00FF").value == "0x00FF"
    assert sample(declared("email"), "0x00FF").value == ""


def test_a_record_without_a_value_has_none() -> None:
    assert sample(declared("email"), None).value is None
    assert sample(declared(), None).value is None


def test_texts_are_bounded_and_hold_neither_secrets_nor_control_characters() -> None:
    shown = sample(declared(), "x" * 5_000, reason="y" * 5_000, position="z" * 5_000)

    assert [len(text) for text in (shown.value or "", shown.reason, shown.position)] == [
        LONGEST_VALUE,
        LONGEST_REASON,
        LONGEST_REASON,
    ]
    assert sample(declared(), '{"password": "tiger"}').value == '{"password": ***}'
    assert sample(declared(), "a\x1b[31mb\u202ec").value == r"a\x1b[31mb\u202ec"


FROM_LINES = '{"file":"s3://lake/in/a.csv"}'
OF_FILE = {"position": FROM_LINES, "reason": "the line lacks id"}


def test_a_line_is_masked_by_the_place_of_its_fields() -> None:
    shown = sample(declared("email", lines=CSV), ",ann@x.org", **OF_FILE)

    assert (shown.value, shown.position) == (",•••", "file s3://lake/in/a.csv")


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
