"""Shards of a real Kinesis-compatible server: positions, reshards, and iterators that expire."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from tests.fixtures.kinesis import Kinesis
from tests.fixtures.kpl import aggregate

from sluice.errors import LakehouseError
from sluice.sources.kinesis_shards import AT_TIMESTAMP, ENDED, TRIM_HORIZON, KinesisShards, kinesis_client

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


def test_every_shard_has_its_share_of_a_limit(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=2)
    shards = KinesisShards(kinesis.client, name)
    kinesis.put(name, *(str(number) for number in range(12)))
    position: Mapping[str, str] = shards.beginning(TRIM_HORIZON)
    whole = shards.advanced(position, most_records=None)
    held = {shard: len(texts(shards, {}, {shard: end})) for shard, end in whole.items()}
    found: list[list[str]] = []
    for expected in (4, 4, 4, 0):
        following = shards.advanced(position, most_records=4)
        found.append(texts(shards, position, following))
        assert len(found[-1]) == expected
        if len(found) == 1:
            first = [len(texts(shards, {}, {shard: end})) for shard, end in following.items()]
            assert sorted(first) == ([2, 2] if min(held.values()) >= 2 else sorted([min(held.values()), 4]))
        position = following
    assert sorted(text for batch in found for text in batch) == sorted(str(number) for number in range(12))


@pytest.mark.full  # every run: each shard has its share
def test_a_limit_below_the_number_of_shards_starves_none(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=3)
    shards = KinesisShards(kinesis.client, name)
    kinesis.put(name, *(str(number) for number in range(60)))
    position = start = shards.beginning(TRIM_HORIZON)
    for _ in range(20):
        position = shards.advanced(position, most_records=1)
    assert len(texts(shards, start, position)) == 20
    assert all(position[shard] != start[shard] for shard in start)


class Steady:
    """A client beside which a producer puts a record after each request."""

    def __init__(self, kinesis: Kinesis, stream: str) -> None:
        self._kinesis, self._stream = kinesis, stream
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        """Everything else is the client's own."""
        return getattr(self._kinesis.client, name)

    def get_records(self, **asked: Any) -> Any:
        """Answer, and let a record arrive."""
        answer = self._kinesis.client.get_records(**asked)
        self.asked += 1
        assert self.asked < 50, "planning does not end"
        self._kinesis.put(self._stream, f"later {self.asked}")
        return answer


def test_planning_ends_under_steady_traffic(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=1)
    kinesis.put(name, "0", "1")
    client: Any = Steady(kinesis, name)
    shards = KinesisShards(client, name)
    begun = shards.beginning(TRIM_HORIZON)

    reached = shards.advanced(begun, most_records=None)

    assert texts(KinesisShards(kinesis.client, name), begun, reached)[:2] == ["0", "1"]
    assert client.asked < 5


def test_a_reader_of_the_newest_records_has_no_older_one_of_a_shard_that_was_split_before(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=1)
    shards = KinesisShards(kinesis.client, name)
    (parent,) = kinesis.shards(name)
    kinesis.put(name, "before the split")
    kinesis.split(name, parent)
    kinesis.put(name, *(f"old {number}" for number in range(4)))
    time.sleep(0.01)  # Kinesis counts milliseconds
    begun = shards.beginning(f"{AT_TIMESTAMP}{round(time.time() * 1000)}")
    none = shards.advanced(begun, most_records=None)
    assert set(none) == set(kinesis.shards(name))
    assert texts(shards, begun, none) == []

    kinesis.put(name, *(f"new {number}" for number in range(4)))

    assert texts(shards, none, shards.advanced(none, most_records=None)) == [f"new {number}" for number in range(4)]


def test_the_records_of_an_aggregate_are_read_one_by_one(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=1)
    shards = KinesisShards(kinesis.client, name)
    begun = shards.beginning(TRIM_HORIZON)
    (shard,) = begun
    kinesis.put(name, "0")
    kinesis.client.put_record(StreamName=name, Data=aggregate({"k": b"1", "l": b"2"}), PartitionKey="a")
    kinesis.put(name, "3")

    reached = shards.advanced(begun, most_records=None)

    found = list(shards.records_between(shard, start=TRIM_HORIZON, end=reached[shard]))
    assert [(one.data, one.partition_key) for one in found] == [(b"0", "0"), (b"1", "k"), (b"2", "l"), (b"3", "3")]
    assert len({one.sequence_number for one in found}) == 4
    assert [one.sequence_number.partition(":")[2] for one in found] == ["", "0", "1", ""]


def test_a_record_of_an_aggregate_that_belongs_to_another_shard_is_left_to_it(kinesis: Kinesis) -> None:
    name = kinesis.create_stream(shards=1)
    kinesis.split(name, kinesis.shards(name)[0])
    shards = KinesisShards(kinesis.client, name)
    packed = aggregate({"low": b"low", "high": b"high"}, hash_keys={"low": 1, "high": 2**128 - 1})
    kinesis.client.put_record(StreamName=name, Data=packed, PartitionKey="a", ExplicitHashKey="1")
    begun = shards.beginning(TRIM_HORIZON)

    assert texts(shards, begun, shards.advanced(begun, most_records=None)) == ["low"]


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
