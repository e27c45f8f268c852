"""Aggregates of the Kinesis Producer Library become the records that a user has sent."""

from __future__ import annotations

import hashlib

import pytest
from tests.fixtures.kpl import aggregate

from sluice.sources.kpl_aggregates import records_of_aggregate


def test_the_records_of_an_aggregate_have_their_own_keys_and_order() -> None:
    found = records_of_aggregate(aggregate({"b": b"1", "a": b"", "c": b"\x00\xff"}, hash_keys={"a": 7}))

    assert found is not None
    assert [(one.partition_key, one.data) for one in found] == [("b", b"1"), ("a", b""), ("c", b"\x00\xff")]
    md5_of_b = int(hashlib.md5(b"b", usedforsecurity=False).hexdigest(), 16)
    assert [one.hash_key for one in found][:2] == [md5_of_b, 7]


def test_an_aggregate_of_nothing_has_no_records() -> None:
    assert records_of_aggregate(aggregate({})) == ()


_MAGIC = b"\xf3\x89\x9a\xc2"


def _signed(message: bytes) -> bytes:
    return _MAGIC + message + hashlib.md5(message, usedforsecurity=False).digest()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"a": 1}', id="json"),
        pytest.param(_MAGIC, id="only the first bytes"),
        pytest.param(_MAGIC + b"0" * 40, id="another digest"),
        pytest.param(aggregate({"a": b"1"})[:-1], id="cut"),
        pytest.param(_signed(b"\xff\xff"), id="no Protobuf"),
        pytest.param(_signed(b"\x1a\x04\x08\x05\x1a\x00"), id="a key that is not there"),
        pytest.param(_signed(b"\x1a\x02\x1a\x00"), id="no key"),
    ],
)
def test_other_data_are_no_aggregate(data: bytes) -> None:
    assert records_of_aggregate(data) is None
