"""Whether records of a Kinesis stream lie unread, asked of Kinesis itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sluice.declarations.source_declarations import KinesisSource
from sluice.errors import LakehouseError, SourceRefusedError
from sluice.ledger.progress_samples import LagObservation
from sluice.settings import KinesisConnection
from sluice.sources.kinesis_shards import AT_TIMESTAMP, TRIM_HORIZON, KinesisShards, kinesis_client

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
    from botocore.exceptions import BotoCoreError, ClientError  # slow to import, and other inputs do not need it

    try:
        shards = KinesisShards(kinesis_client(connection), source.stream)
        positions = offset["shards"] if isinstance(offset, Mapping) else shards.beginning(_beginning(source))
        return LagObservation(rows=None, undone=shards.unread_shards(positions))
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        kind = SourceRefusedError if code in _REFUSALS else LakehouseError
        raise kind(f"Kinesis does not let stream {source.stream} be read: {code or error}.") from error
    except BotoCoreError as error:
        raise LakehouseError(f"Kinesis does not answer: {error}.") from error


def _beginning(source: KinesisSource) -> str:
    if isinstance(source.starting, datetime):
        return f"{AT_TIMESTAMP}{round(source.starting.timestamp() * 1000)}"
    return TRIM_HORIZON
