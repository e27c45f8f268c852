"""Reads the shards of a Kinesis stream by durable positions: in order, parents before children, each record once.

The position of a shard is the sequence number of the last record read, or one of the constants below. Iterators, which
expire after five minutes, are not stored.

Source: https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html and API_GetShardIterator.html
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sluice.declarations.source_declarations import KinesisSource
from sluice.errors import LakehouseError, SourceRefusedError
from sluice.ledger.progress_samples import LagObservation
from sluice.settings import KinesisConnection
from sluice.sources.kpl_aggregates import records_of_aggregate

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient
    from mypy_boto3_kinesis.type_defs import ShardTypeDef

    from sluice.settings import KinesisConnection

TRIM_HORIZON = "TRIM_HORIZON"
AT_TIMESTAMP = "AT_TIMESTAMP:"
"""Followed by milliseconds since 1970: the start of a new checkpoint that does not begin with the oldest record."""

ENDED = "ENDED:"
"""Followed by the last sequence number, or by where its reader began if it had no record since: the shard is closed and
has been read to its end."""

_LARGEST_HASH_KEY = 2**128 - 1
_RECORDS_OF_A_REQUEST = 1000
_PAUSE_SECONDS = 0.25
"""The pause after a request that returned no records: Kinesis allows five requests per second and shard."""

_MOST_EMPTY_ANSWERS = 10
"""Kinesis goes through a shard that had no record for long in several empty answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisRecord:
    """A record. arrived_at: the approximate time at which Kinesis received it.

    sequence_number: of a record that a producer packed with others into one, that one's, a colon, and its place in it.
    """

    shard: str
    sequence_number: str
    partition_key: str
    data: bytes
    arrived_at: datetime


class KinesisShards:
    """The shards of one stream.

    Parameters
    ----------
    client: the client of Kinesis.
    stream: the name of the stream.
    pause: waits between two requests.
    """

    def __init__(self, client: KinesisClient, stream: str, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._stream = stream
        self._pause = pause
        self._hash_keys: Mapping[str, tuple[int, int]] | None = None

    def beginning(self, position: str) -> dict[str, str]:
        """The start of a reader: this position in every shard whose parents no longer exist."""
        parents = self._parents()
        return {shard: position for shard, above in parents.items() if not above}

    def advanced(self, positions: Mapping[str, str], *, most_records: int | None) -> dict[str, str]:
        """The positions after the newest records, or after `most_records` records, of which each shard has its share.

        After the end of a closed shard, its children are read from their oldest record, or from the time at which the
        reader began. Ended shards are removed from the positions once Kinesis no longer lists them.

        Raises
        ------
        LakehouseError: when a shard was removed before it was read to its end.
        """
        reached = dict(positions)
        left = most_records
        waiting = _in_turn(reached)
        while waiting and left != 0:
            share = None if left is None else max(1, left // len(waiting))
            asked, behind = (waiting, []) if left is None else (waiting[:left], waiting[left:])
            for shard in asked:
                taken = self._advance(shard, reached, at_most=share)
                left = None if left is None else left - taken
                if reached[shard].startswith(ENDED):
                    behind += self._add_children(reached)
                elif taken == share:
                    behind.append(shard)
            waiting = behind
        return self._without_removed(reached)

    def unread_shards(self, positions: Mapping[str, str]) -> int:
        """In how many shards a record lies after a reader's position; a shard of closed parents counts with them.

        One record of each is asked for. An answer that holds none and has not reached the newest record yet is followed
        up a few times only; such a shard has had no record for long.
        """
        return sum(
            self._has_more(shard, position) for shard, position in positions.items() if not position.startswith(ENDED)
        )

    def _has_more(self, shard: str, position: str) -> bool:
        iterator: str | None = self._iterator(shard, position)
        for _ in range(_MOST_EMPTY_ANSWERS):
            answer = self._client.get_records(ShardIterator=iterator or "", Limit=1)
            iterator = answer.get("NextShardIterator")
            if answer["Records"]:
                return True
            if iterator is None:
                return True  # it is closed and read: its reader has yet to continue with the shards after it
            if answer.get("MillisBehindLatest", 0) == 0:
                return False
            self._pause(_PAUSE_SECONDS)
        return False

    def _advance(self, shard: str, reached: dict[str, str], *, at_most: int | None) -> int:
        """Move the position of a shard. Returns by how many records."""
        taken = 0
        records = self._records(shard, reached[shard], on_end=reached.__setitem__, at_most=at_most)
        for record in islice(records, at_most):
            reached[shard] = record.sequence_number
            taken += 1
        return taken

    def records_between(self, shard: str, *, start: str, end: str) -> Iterator[KinesisRecord]:
        """The records of a shard after `start`, up to and including `end`; those of an aggregate one by one.

        Raises
        ------
        LakehouseError: when the shard was removed before it was read to its end.
        """
        last = end.removeprefix(ENDED)
        if start == end or last in ("", start) or not last.isdigit():
            return
        for record in self._records(shard, start, on_end=lambda _shard, _position: None, at_most=None):
            if int(record.sequence_number) > int(last):
                return
            yield from self._taken_apart(record)
            if record.sequence_number == last:
                return

    def _records(
        self, shard: str, position: str, *, on_end: Callable[[str, str], None], at_most: int | None
    ) -> Iterator[KinesisRecord]:
        """The records from a position to the newest. on_end: called with a shard that has ended and its position.

        Under steady traffic there is always a newer record: the second answer that reaches the newest one is the last.
        After the first, a closed shard still has to say that it has ended.
        """
        was_newest = False
        limit = min(at_most or _RECORDS_OF_A_REQUEST, _RECORDS_OF_A_REQUEST)
        iterator = self._iterator(shard, position)
        while True:
            try:
                answer = self._client.get_records(ShardIterator=iterator, Limit=limit)
            except self._client.exceptions.ExpiredIteratorException:
                iterator = self._iterator(shard, position)  # the records were consumed slowly; continue at the last one
                continue
            for found in answer["Records"]:
                position = found["SequenceNumber"]
                yield _record(shard, found)
            following = answer.get("NextShardIterator")
            if following is None:
                on_end(shard, f"{ENDED}{'' if position == TRIM_HORIZON else position}")
                return
            iterator = following
            if answer.get("MillisBehindLatest", 0) == 0:
                if was_newest or not answer["Records"]:
                    return
                was_newest = True
            elif not answer["Records"]:
                self._pause(_PAUSE_SECONDS)

    def _iterator(self, shard: str, position: str) -> str:
        asked: dict[str, Any] = {"ShardIteratorType": TRIM_HORIZON}
        if position.startswith(AT_TIMESTAMP):
            instant = datetime.fromtimestamp(int(position.removeprefix(AT_TIMESTAMP)) / 1000, UTC)
            asked = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": instant}
        elif position != TRIM_HORIZON:
            asked = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": position}
        missing = (
            self._client.exceptions.ResourceNotFoundException,
            self._client.exceptions.InvalidArgumentException,
        )
        try:
            return self._client.get_shard_iterator(StreamName=self._stream, ShardId=shard, **asked)["ShardIterator"]
        except missing as error:
            raise LakehouseError(
                f"Kinesis stream {self._stream} cannot be read after {position} of {shard}: {error}.",
                next_step="Its unread records are lost unless kept elsewhere; a new generation continues without them.",
            ) from error

    def _add_children(self, reached: dict[str, str]) -> list[str]:
        """Start every shard whose parents have all ended or were removed."""
        parents = self._parents()
        begun = [
            shard
            for shard, above in parents.items()
            if shard not in reached and above and all(reached.get(one, "").startswith(ENDED) for one in above)
        ]
        reached.update({shard: _start_of_child([reached[parent] for parent in parents[shard]]) for shard in begun})
        return begun

    def _taken_apart(self, record: KinesisRecord) -> Iterator[KinesisRecord]:
        """The records that a producer packed into one; a record that is none of these stays as it is."""
        packed = records_of_aggregate(record.data)
        if packed is None:
            yield record
            return
        if self._hash_keys is None:
            self._hash_keys = {
                shard["ShardId"]: (int(keys["StartingHashKey"]), int(keys["EndingHashKey"]))
                for shard in self._listed()
                if (keys := shard["HashKeyRange"])
            }
        first, last = self._hash_keys.get(record.shard, (0, _LARGEST_HASH_KEY))
        for place, one in enumerate(packed):
            if first <= one.hash_key <= last:
                number = f"{record.sequence_number}:{place}"
                yield replace(record, sequence_number=number, partition_key=one.partition_key, data=one.data)

    def _without_removed(self, reached: dict[str, str]) -> dict[str, str]:
        if not any(position.startswith(ENDED) for position in reached.values()):
            return reached
        listed = self._parents()
        return {shard: at for shard, at in reached.items() if shard in listed or not at.startswith(ENDED)}

    def _parents(self) -> dict[str, tuple[str, ...]]:
        """The parents of every listed shard that are listed themselves."""
        shards = self._listed()
        listed = {shard["ShardId"] for shard in shards}
        return {
            shard["ShardId"]: tuple(
                parent
                for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
                if parent is not None and parent in listed
            )
            for shard in shards
        }

    def _listed(self) -> list[ShardTypeDef]:
        pages = self._client.get_paginator("list_shards").paginate(StreamName=self._stream)
        return [shard for page in pages for shard in page["Shards"]]


def _in_turn(positions: Mapping[str, str]) -> list[str]:
    """The shards that have not ended. Which one is first changes whenever the positions do: a limit below the number of
    shards starves none."""
    shards = sorted(shard for shard, position in positions.items() if not position.startswith(ENDED))
    first = crc32(repr(sorted(positions.items())).encode()) % max(1, len(shards))
    return shards[first:] + shards[:first]


def _start_of_child(parents: Sequence[str]) -> str:
    """Where a shard is begun after its parents. A parent without a record since the reader began may have been closed
    before, so that its child has older records."""
    ends = (position.removeprefix(ENDED) for position in parents)
    return next((end for end in ends if end.startswith(AT_TIMESTAMP)), TRIM_HORIZON)


def _record(shard: str, found: Mapping[str, Any]) -> KinesisRecord:
    return KinesisRecord(
        shard=shard,
        sequence_number=found["SequenceNumber"],
        partition_key=found["PartitionKey"],
        data=found["Data"],
        arrived_at=found["ApproximateArrivalTimestamp"],
    )


def kinesis_client(connection: KinesisConnection) -> KinesisClient:
    """Create a client for a Kinesis connection. Throttled requests are repeated with growing delays."""
    import boto3
    from botocore.config import Config

    key, secret = connection.access_key_id, connection.secret_access_key
    return boto3.client(
        "kinesis",
        region_name=connection.region,
        endpoint_url=connection.endpoint,
        aws_access_key_id=key.get_secret_value() if key else None,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
        config=Config(retries={"max_attempts": 10, "mode": "standard"}),
    )


_REFUSALS = frozenset({"ResourceNotFoundException", "AccessDeniedException", "UnrecognizedClientException"})
"""The answers of a service that is there: no such stream, no permission, no such key."""


def unread_of_kinesis(source: KinesisSource, connection: KinesisConnection, offset: Any) -> LagObservation:
    """Observe in how many shards something lies unread. How many records that are, Kinesis does not say.

    Parameters
    ----------
    offset: the reader's position, as the source of the driver writes it; None before its first batch.

    Raises
    ------
    SourceRefusedError: when Kinesis answers that there is no such stream, or that it may not be read.
    LakehouseError: when Kinesis does not answer.
    """
    with _refusals(source.stream):
        shards = KinesisShards(kinesis_client(connection), source.stream)
        positions = offset["shards"] if isinstance(offset, Mapping) else shards.beginning(_beginning(source))
        return LagObservation(rows=None, undone=shards.unread_shards(positions))


def kinesis_identity(source: KinesisSource, connection: KinesisConnection) -> str:
    """The name of a stream in all of AWS, and when it was created: one that is deleted and created again differs.

    Raises
    ------
    SourceRefusedError, LakehouseError: as `unread_of_kinesis`.
    """
    with _refusals(source.stream):
        found = kinesis_client(connection).describe_stream_summary(StreamName=source.stream)["StreamDescriptionSummary"]
        created_at = found["StreamCreationTimestamp"].astimezone(UTC)
        return f"{found['StreamARN']}, created {created_at.isoformat()}"


@contextmanager
def _refusals(stream: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # slow to import, and other inputs do not need it

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        kind = SourceRefusedError if code in _REFUSALS else LakehouseError
        raise kind(f"Kinesis does not let stream {stream} be read: {code or error}.") from error
    except BotoCoreError as error:
        raise LakehouseError(f"Kinesis does not answer: {error}.") from error


def _beginning(source: KinesisSource) -> str:
    if isinstance(source.starting, datetime):
        return f"{AT_TIMESTAMP}{round(source.starting.timestamp() * 1000)}"
    return TRIM_HORIZON
