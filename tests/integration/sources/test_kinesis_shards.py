"""Shards of a real Kinesis-compatible server: positions, reshards, and iterators that expire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from tests.fixtures.kinesis import Kinesis

from sluice.errors import LakehouseError
from sluice.sources.kinesis_shards import ENDED, TRIM_HORIZON, KinesisShards, kinesis_client

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient


def texts(shards: KinesisShards, start: Mapping[str, str], end: Mapping[str, str]) -> list[str]:
    """What lies between two positions."""
    return sorted(
        record.data.decode()
        for shard, position in end.items()
        for record in shards.records_between(shard, start=start.get(shard, TRIM_HORIZON), end=position)
    )


def test_parents_are_read_to_their_end_before_their_children_begin(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=1)
    shards = KinesisShards(kinesis.client, name)
    kinesis.put(name, "0", "1", "2")
    begun = shards.beginning(TRIM_HORIZON)
    (parent,) = begun
    kinesis.split(name, parent)
    kinesis.put(name, "3", "4", "5", "6")
    _, *halves = kinesis.shards(name)

    part = shards.advanced(begun, most_records=2)
    assert set(part) == {parent}
    assert texts(shards, begun, part) == ["0", "1"]

    whole = shards.advanced(part, most_records=None)
    assert whole[parent].startswith(ENDED)
    assert set(whole) == {parent, *halves}
    assert texts(shards, part, whole) == ["2", "3", "4", "5", "6"]

    kinesis.merge(name, *halves)
    kinesis.put(name, "7")
    after = shards.advanced(whole, most_records=None)
    assert len(after) == 4
    assert all(after[half].startswith(ENDED) for half in halves)
    assert texts(shards, whole, after) == ["7"]
    assert texts(shards, begun, after) == [str(number) for number in range(8)]
    assert shards.advanced(after, most_records=None) == after


def test_a_limit_spans_the_shards(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=2)
    shards = KinesisShards(kinesis.client, name)
    kinesis.put(name, *(str(number) for number in range(10)))
    position: Mapping[str, str] = shards.beginning(TRIM_HORIZON)
    found = []
    for expected in (4, 4, 2, 0):
        following = shards.advanced(position, most_records=4)
        found.append(texts(shards, position, following))
        assert len(found[-1]) == expected
        position = following
    assert sorted(text for batch in found for text in batch) == [str(number) for number in range(10)]


class Expiring:
    """A client some of whose iterators have expired, as Kinesis says it after five minutes."""

    def __init__(self, client: KinesisClient) -> None:
        self._client = client
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        """Everything else is the client's own."""
        return getattr(self._client, name)

    def get_records(self, **asked: Any) -> Any:
        """Refuse every second request."""
        self.asked += 1
        if self.asked % 2 == 0:
            answer: Any = {"Error": {"Code": "ExpiredIteratorException", "Message": "Iterator expired."}}
            raise self._client.exceptions.ExpiredIteratorException(answer, "GetRecords")
        return self._client.get_records(**{**asked, "Limit": 1})


def test_an_expired_iterator_is_replaced_where_the_reader_is(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=1)
    kinesis.put(name, "0", "1", "2")
    client: Any = Expiring(kinesis.client)
    shards = KinesisShards(client, name)
    begun = shards.beginning(TRIM_HORIZON)

    reached = shards.advanced(begun, most_records=None)

    assert texts(shards, begun, reached) == ["0", "1", "2"]
    assert client.asked > 6


def test_a_position_that_kinesis_does_not_know_any_more_is_a_loud_loss(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=1)
    shards = KinesisShards(kinesis.client, name)
    gone = "shardId-000000000099"
    with pytest.raises(LakehouseError, match=f"Kinesis stream {name} cannot be read after 1 of {gone}: "):
        shards.advanced({gone: "1"}, most_records=None)


def test_a_stream_that_does_not_exist_is_reported_by_the_service(kinesis: Kinesis) -> None:
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        KinesisShards(kinesis_client(kinesis.connection), "nowhere").beginning(TRIM_HORIZON)
