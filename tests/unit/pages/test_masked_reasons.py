"""What a page shows of a record that was rejected by the platform itself, in a stream with masked columns."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.value_declaration import Column
from sluice.pages.quarantine_page import QuarantineSample, record_masks_of, sample_of
from sluice.record_values.block_decoding import BinaryBlockDecoder
from sluice.record_values.rejection import rejection_row
from sluice.record_values.schemas import RegisteredSchema, SchemaText, ValueSchema

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
INVALID = "schema 7: the value is not valid Avro of its schema: "
COLUMNS = [{"name": "id", "type": "long"}, {"name": "email", "type": "string"}]
AVRO = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
VALUE = {"format": "avro", "registry": "registry", "columns": COLUMNS}
SOURCE = {"connection": "events", "topics": ["orders"], "value": VALUE}


def shown(value: bytes) -> QuarantineSample:
    registered = RegisteredSchema(format="avro", schema=SchemaText(text=json.dumps(AVRO)))
    schema = ValueSchema(format="avro", columns=tuple(Column.model_validate(one) for one in COLUMNS))
    block = BinaryBlockDecoder(schema, lookup={7: registered}.get).decode([value])
    stream = StreamDeclaration.model_validate(
        {
            "stream": "typed_orders",
            "description": "typed orders",
            "owner": "shop",
            "mode": "continuous",
            "trigger": {"processing_time": "2 seconds"},
            "inputs": {"orders": {"stream": {"kafka": SOURCE}}},
            "transformation": {"python": "orders.py:orders"},
            "outputs": {"main": {"iceberg": {"table": "typed.orders"}}},
            "quarantine": True,
            "masked_columns": ["email"],
        }
    )
    row = {"generation": 1, "batch": 1, "position": None, "payload": f"0x{value.hex()}", "refused_at": NOON}
    return sample_of({**row, **rejection_row(block.rejections[0])}, stream, record_masks_of(stream, {}))


def framed(schema_id: int, content: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + content


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{}", "the value does not begin with the id of a schema in a registry"),
        (framed(7, b"\x02ann"), f"{INVALID}3 bytes are left over"),
        (framed(7, b""), f"{INVALID}EOFError"),
        (framed(7, b"\x80" * 9 + b"\x02"), f"{INVALID}the number has more than 64 bits, at `id`"),
        (framed(8, b"\x02"), "schema 8: the schema of the value cannot be used: the registry does not have it"),
    ],
)
def test_a_rejected_avro_record_has_a_reason_though_its_value_is_hidden(value: bytes, reason: str) -> None:
    sample = shown(value)

    assert (sample.value, sample.reason) == ("", reason)
